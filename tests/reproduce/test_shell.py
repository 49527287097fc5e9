"""The script: its bodies are those that were sent, it is bash, and no secret is in it."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.plan import Arm, Target
from fidelity.reproduce.server import serve_command, server_command
from fidelity.reproduce.shell import script
from fidelity.verdicts import CellVerdict

from .conftest import NAN


@pytest.fixture
def text(cell: Callable[..., CellVerdict], pair: Callable[..., list[Observation]], chosen: Any) -> str:
    hostile = {**NAN, "text": "!'\n\x1b[31m $(date)"}
    return script(chosen(cell(), pair("a/b", **hostile)), "", "fidelity reproduce RUN")


def test_the_bodies_are_those_that_were_sent(text: str, bodies: Any) -> None:
    cold, hit = bodies(text)
    assert cold == {
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 3,
        "input_ids": [1] * 193,
        "extra_key": "k/a",
    }
    assert hit == {**cold, "top_logprobs_num": 1, "token_ids_logprob": [5, 6, 7]}


def test_it_says_what_to_expect_and_what_was_seen(text: str) -> None:
    assert '# expect: cached_tokens 0; an answer that begins as "Paris" does' in text
    assert '# expect: cached_tokens 192; first token as when cold: "Paris" (id 5)' in text
    assert "NaN: 1 of 4 logprobs (null (1))" in text
    assert "cached_tokens 192, tail 1" in text
    assert text.endswith(
        "# why it is corrupt: NaN: 1 null\n# send the same, and compare: fidelity reproduce RUN\n"
    )


def test_every_line_is_a_comment_an_assignment_or_a_curl_whatever_the_server_said(text: str) -> None:
    starts = {line.split(" ")[0].split("=")[0] for line in text.splitlines() if line}
    assert starts == {"#", "KEY", "curl"}
    assert "\x1b" not in text


@pytest.mark.parametrize("key", [None, "s3cret & more"])
def test_bash_passes_the_key_of_the_environment_and_a_fresh_namespace(
    text: str, key: str | None, tmp_path: Path
) -> None:
    curl = tmp_path / "curl"
    curl.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\n')
    curl.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({"FIDELITY_API_KEY": key} if key else {})
    ran = [
        subprocess.run(
            ["bash", "-c", text], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    words = ran[0].splitlines()
    assert words.count("[http://server:30000/generate]") == 2
    assert ("[-HAuthorization: Bearer s3cret & more]" in words) is (key is not None)
    assert sum(word.startswith("[-HAuth") for word in words) == (2 if key else 0)
    assert '"extra_key":"repro-' in ran[0]
    assert ran[0] != ran[1]
    assert "s3cret" not in text


def test_files_of_the_run_are_named(cell: Any, pair: Any, chosen: Any, manifest: Manifest) -> None:
    target = {"kind": "attach", "url": "https://server", "header_file": "my headers", "ca_file": "ca.pem"}
    manifest.plan = plans.build({"target": target})
    text = script(chosen(cell(), pair("a/b", **NAN)), "", "")
    assert "-H '@my headers' --cacert ca.pem" in text
    assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0


def test_the_embedded_engine_is_served_as_it_was(manifest: Manifest, tmp_path: Path) -> None:
    target = Target(fault="split-k:rate=0.5", cu=32, speculative=True, page_size=1)
    line = serve_command(target, Arm(name="x", guard="splitk"), 7)
    assert line.startswith(
        "fidelity serve --port 30000 --profile quiz-state --fault split-k:rate=0.5 --guard splitk "
    )
    assert line.endswith("--cu 32 --noise 0.0 --seed 7 --page-size 1 --speculative")
    assert server_command(manifest, "none", tmp_path) == ""


def test_a_server_that_cannot_be_looked_at_is_named_by_the_command_that_prints_it(
    manifest: Manifest, tmp_path: Path
) -> None:
    manifest.plan = plans.build({"target": {"kind": "process", "model": "M", "python": "/no/such/python"}})
    manifest.argv = ["/bin/fidelity", "run", "--model", "M", "--", "--tp", "2"]
    wanted = "fidelity run --print-command --model M -- --tp 2"
    assert server_command(manifest, "none", tmp_path) == wanted
    assert server_command(manifest, "none", tmp_path, look=True).startswith(
        f"{wanted}  # it cannot be told here: "
    )
