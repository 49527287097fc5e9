"""The file of one process: whole at any time, written at news, its counts right at exit."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fidelity.guards.inserver import process
from fidelity.guards.inserver.marker import MAX_ERRORS, MAX_SHAPES, OTHER, Marker
from fidelity.guards.markers import read_markers

REPOSITORY = Path(__file__).parents[3]


def told(marker: Marker) -> dict[str, Any]:
    """The one marker file in its folder."""
    (path,) = marker.directory.glob("*.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def wrapped_function() -> int:
    return 1


def test_it_tells_who_wraps_what(marker: Marker) -> None:
    marker.wraps("a.b", wrapped_function)
    content = told(marker)
    assert (content["pid"], content["ppid"], content["guard"]) == (os.getpid(), os.getppid(), "splitk")
    assert content["active"] is True
    assert content["wrapped"] == "a.b"
    source = inspect.getsource(wrapped_function).encode()
    assert content["source_sha256"] == hashlib.sha256(source).hexdigest()
    assert content["versions"]["python"] == sys.version.split()[0]
    assert content["versions"]["aiter"] is None
    assert content["updated_at"] >= content["loaded_at"]


def test_an_object_without_source_has_no_hash(marker: Marker) -> None:
    marker.wraps("builtins.len", len)
    assert told(marker)["source_sha256"] is None


def test_news_are_written_at_once_and_the_rest_in_time(
    marker: Marker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("fidelity.guards.inserver.marker.time.monotonic", lambda: clock[0])
    for _ in range(6):
        marker.call()
    assert told(marker)["calls"] == 4, "1, 2, 4, 8 ... calls are news"
    marker.call("new shape", lowered=True)
    assert told(marker)["shapes"] == {"new shape": {"calls": 1, "lowered": 1}}
    for _ in range(3):
        marker.call("new shape", lowered=True)
    assert told(marker)["calls"] == 8
    clock[0] += 1.5
    marker.call("new shape")
    assert told(marker)["shapes"] == {"new shape": {"calls": 5, "lowered": 4}}
    assert (told(marker)["calls"], told(marker)["lowered"]) == (11, 4)


def test_shapes_and_errors_are_bounded_and_all_are_counted(marker: Marker) -> None:
    for number in range(MAX_SHAPES + 50):
        marker.call(f"M={number}")
    for number in range(MAX_ERRORS + 5):
        marker.error("counting", ValueError(str(number)))
    marker.write()
    content = told(marker)
    assert content["shapes"][OTHER]["calls"] == 50
    assert len(content["errors"]) == MAX_ERRORS
    assert content["error_count"] == MAX_ERRORS + 5
    assert content["errors"][0].startswith("counting: ValueError: 0")


def test_the_file_is_replaced_whole(marker: Marker, monkeypatch: pytest.MonkeyPatch) -> None:
    marker.wraps("a.b", wrapped_function)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    marker.call()
    assert told(marker)["calls"] == 0, "an unfinished file is not seen"
    assert len(read_markers(marker.directory)) == 1


def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = Marker("splitk", tmp_path / "missing")
    for _ in range(4):
        marker.call()
    assert capfd.readouterr().err.count("cannot write a marker") == 1


def test_a_private_umask_does_not_hide_it(marker: Marker) -> None:
    before = os.umask(0o077)
    try:
        marker.write()
    finally:
        os.umask(before)
    (path,) = marker.directory.glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o644


def test_counts_are_right_at_exit_and_a_fork_counts_apart(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom fidelity.guards.inserver.marker import Marker\n"
        "marker = Marker('splitk', Path(sys.argv[1]))\n"
        "for _ in range(7): marker.call()\n"
        "if os.fork() == 0:\n    marker.call('forked'); os._exit(0)\n"
        "if os.fork() == 0: os._exit(0)\n"
        "os.wait(); os.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=REPOSITORY, check=True, capture_output=True
    )
    assert not done.stderr
    found = read_markers(tmp_path)
    assert sorted(marker.calls for marker in found) == [1, 7]
    assert len({marker.pid for marker in found}) == 2


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("sglang::scheduler", "scheduler"),
        ("sglang::scheduler_DP0_TP3", "scheduler"),
        ("sglang::detokenizer", "detokenizer"),
        ("sglang::data_parallel_controller", "data_parallel_controller"),
        ("sglang::tokenizer_worker:12", "tokenizer_worker"),
    ],
)
def test_titles_name_the_role(title: str, role: str) -> None:
    assert process.role(title, called=False) == role


def test_without_a_title_calling_makes_a_scheduler() -> None:
    assert process.role("python -m sglang.launch_server", called=False) == "launcher"
    assert process.role("python -m sglang.launch_server", called=True) == "scheduler"


def test_secrets_in_the_arguments_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        "python",
        "--api-key",
        "hush",
        "--hf-token=hush",
        "--max-total-tokens",
        "5",
        "--ssl-keyfile-password=x",
    ]
    monkeypatch.setattr(sys, "orig_argv", given)
    shown = [
        "python",
        "--api-key",
        "***",
        "--hf-token=***",
        "--max-total-tokens",
        "5",
        "--ssl-keyfile-password=***",
    ]
    assert process.command_line() == shown
