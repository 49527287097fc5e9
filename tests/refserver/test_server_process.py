"""The server as its own process: how it starts, what it says, and every way it is told to stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from fidelity.refserver.__main__ import parse_arguments

COMMAND = [sys.executable, "-P", "-m", "fidelity.refserver", "--profile", "random"]
Started = tuple[subprocess.Popen[str], str]


@pytest.fixture
def launch() -> Iterator[Callable[..., Started]]:
    """`launch("--fault", ...)`: a running server's process and URL, read from the one line it prints."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **options: Any) -> Started:
        # As little of this process's environment as will do: the server must set its own BLAS threads.
        kept = ("PATH", "PYTHONPATH", "HOME", "SYSTEMROOT")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            **options,
        )
        started.append(process)
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert list(line) == ["port", "pid", "url"]
        assert line["url"] == f"http://127.0.0.1:{line['port']}"
        assert line["pid"] == process.pid
        return process, line["url"]

    yield run
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(launch: Callable[..., Started], number: signal.Signals) -> None:
    process, url = launch()
    assert httpx.get(url + "/health").status_code == 200
    process.send_signal(number)
    out, err = process.communicate(timeout=5)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err


def test_a_signal_ends_it_within_two_seconds_of_a_long_answer(launch: Callable[..., Started]) -> None:
    process, url = launch()
    body = {"input_ids": [1] * 65, "stream": True, "sampling_params": {"max_new_tokens": 8000}}
    body["sampling_params"] |= {"ignore_eos": True}  # type: ignore[operator]
    with httpx.stream("POST", url + "/generate", json=body, timeout=10) as reply:
        lines = reply.iter_lines()
        next(lines)
        sent = time.monotonic()
        process.terminate()
        with pytest.raises(httpx.HTTPError):
            list(lines)
        process.wait(timeout=5)
    assert process.returncode == 0
    assert time.monotonic() - sent < 3


def test_it_ends_when_stdin_closes(launch: Callable[..., Started]) -> None:
    process, url = launch("--watch-stdin", stdin=subprocess.PIPE)
    assert httpx.get(url + "/ready").status_code == 200
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=5) == 0


def test_without_watch_stdin_it_outlives_it(launch: Callable[..., Started]) -> None:
    _, url = launch(stdin=subprocess.DEVNULL)
    time.sleep(0.2)
    assert httpx.get(url + "/ready").status_code == 200


def test_the_log_says_how_many_tokens_each_extend_computed(launch: Callable[..., Started]) -> None:
    process, url = launch("--fault", "split-k-nan")
    body = {"input_ids": [1] * 193, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    replies = [httpx.post(url + "/generate", json=body).json() for _ in range(2)]
    pair = httpx.post(url + "/generate", json=body | {"input_ids": [[1] * 193] * 2}).json()
    process.terminate()
    _, err = process.communicate(timeout=5)
    assert replies[1]["output_ids"] == [0]
    assert [reply["output_ids"] for reply in pair] == [replies[0]["output_ids"]] * 2
    lines = [line.split("Prefill batch, ")[1] for line in err.splitlines() if "Prefill batch, " in line]
    assert [line[: line.index(", full")] for line in lines] == [
        "#new-seq: 1, #new-token: 193, #cached-token: 0",
        "#new-seq: 1, #new-token: 1, #cached-token: 192",
        "#new-seq: 2, #new-token: 2, #cached-token: 384",
    ]


def test_replies_are_not_held_back(launch: Callable[..., Started]) -> None:
    _, url = launch()
    with httpx.Client(base_url=url) as client:
        times = []
        for _ in range(20):
            start = time.monotonic()
            client.post("/tokenize", json={"prompt": "a"})
            times.append(time.monotonic() - start)
    assert min(times) < 0.03  # Nagle's delay would make every one 40 ms


def test_one_blas_thread(launch: Callable[..., Started]) -> None:
    process, url = launch()
    httpx.get(url + "/health")
    assert psutil.Process(process.pid).num_threads() == 2  # the main one and the engine's


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "nothing-here"], "nothing-here"),
        (["--profile", "random", "--speculative", "NEXTN"], "profile 'random' has no draft head"),
        (["--port", "1", "--host", "203.0.113.7"], "error: "),
    ],
)
def test_what_cannot_start_exits_3_and_says_why(arguments: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "none-such"], "fault must be one of none, split-k, "),
        (["--guard", "splitk,none-such"], "guard must be one of splitk, retreat, unsplit, got 'none-such'."),
        (["--page-size", "48"], "page_size must divide 64 or be a multiple of it, got 48."),
        (["--strategy", "no_buffer", "--page-size", "64"], "page_size must be 1 with strategy no_buffer"),
        (["--noise", "-1"], "noise must be in [0, 1), got -1.0."),
        (["--cu", "0"], "cu must be at least 1, got 0."),
        (["--speculative", "EAGLE3"], "invalid choice"),
        (["--speculative", "NEXTN", "--deterministic"], "deterministic and speculative exclude each other"),
    ],
)
def test_a_wrong_command_line_exits_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_guards_may_be_repeated_or_listed() -> None:
    settings, _ = parse_arguments(["--guard", "splitk,none", "--guard", "retreat", "--guard", "splitk"])
    assert settings.guard == ("splitk", "retreat")
    assert (settings.expert_guard, settings.retreat) == ("splitk", True)
    assert parse_arguments(["--guard", "none"])[0].guard == ()


def test_no_buffer_has_pages_of_one_token() -> None:
    settings, options = parse_arguments(
        ["--strategy", "no_buffer", "--port", "7", "--no-enable-cache-report"]
    )
    assert (settings.page_size, settings.enable_cache_report, options.port) == (1, False, 7)
    assert parse_arguments([])[0].page_size == 64


@pytest.mark.parametrize(("page", "grid"), [(1, 64), (16, 64), (64, 64), (128, 128), (512, 512)])
def test_the_grid_is_a_multiple_of_the_chunk_and_the_page(page: int, grid: int) -> None:
    settings, _ = parse_arguments(["--page-size", str(page)])
    assert settings.grid == grid
    assert settings.decode_grid == max(256, grid)
