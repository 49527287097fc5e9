"""`fidelity reproduce` end to end: a small failing run, its script in bash, and replays on live servers."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import COMMAND, Done, Here, environment, run_command

PLAN = """
target: {kind: embedded, model: embedded, fault: split-k-nan}
arms: [{name: none}, {name: splitk, guard: splitk}]
probes: [resend]
prompts: {count: 3, include: []}
thresholds: {max_rate: 0.7}
resend: {suspects: [1], controls: [33], hits: 1, warmup_sends: 2, warmup_tokens: 4}
"""
CELL = "L=193 tail=1"


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("failed")
    (folder / "plan.yaml").write_text(PLAN)
    done = run_command(folder, "run", "--config", "plan.yaml")
    assert done.code == 10, done.out
    return done


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The URL of an embedded server."""
    with subprocess.Popen(
        [COMMAND, "serve", "--port", "0", *words], env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def script(failed: Done) -> str:
    done = run_command(failed.directory.parent, "reproduce", str(failed.directory))
    assert done.code == 0, done.err
    return done.out


def test_the_script_shows_the_fault_in_bash_each_time_it_is_pasted(script: str) -> None:
    assert "fidelity serve --port 30000 --profile quiz-state --fault split-k-nan --guard none" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    if shutil.which("curl") is None:
        return
    with served("--fault", "split-k-nan") as url:
        pasted = script.replace("http://127.0.0.1:30000", url)
        for _ in range(2):
            ran = subprocess.run(["bash", "-s"], input=pasted, capture_output=True, text=True, check=True)
            cold, hit = (json.loads(line) for line in ran.stdout.splitlines())
            assert [one["meta_info"]["cached_tokens"] for one in (cold, hit)] == [0, 192]
            assert [one["meta_info"]["output_token_logprobs"][0][0] is None for one in (cold, hit)] == [
                False,
                True,
            ]
            assert cold["output_ids"] != hit["output_ids"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--fault", "split-k-nan"), 10, "REPRODUCED: NaN: 41 null"),
        (("--fault", "split-k-nan", "--guard", "splitk"), 0, "NOT REPRODUCED"),
        (("--fault", "split-k-nan", "--strategy", "no_buffer"), 11, "hit: cached_tokens 0 instead of 192"),
    ],
)
def test_a_replay_says_whether_it_happened_again(
    failed: Done, here: Here, words: tuple[str, ...], code: int, said: str
) -> None:
    with served(*words) as url:
        done = here("reproduce", str(failed.directory), CELL, "--replay", url)
    assert done.code == code, done.out + done.err
    assert said in done.out
    assert '  then:     "!" (id 0); NaN: 41 of 41 logprobs' in done.out
    assert "  now: " in done.out


def test_a_server_that_does_not_answer_is_exit_3(failed: Done, here: Here) -> None:
    done = here("reproduce", str(failed.directory), "--replay", "http://127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert "no answer from http://127.0.0.1:1" in done.err


def test_every_report_says_how(failed: Done, script: str) -> None:
    section = (failed.directory / "report.md").read_text().split("## How to reproduce it", 1)[1]
    curls = [line for line in script.splitlines() if line.startswith("curl ")]
    assert all(f"    {line}\n" in section for line in curls)
    command = f"fidelity reproduce {failed.directory} '{CELL}'"
    assert f"reproduce: {command}\n" in failed.out
    junit = (failed.directory / "junit.xml").read_text()
    assert junit.count("curl -sS") == len(curls) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("L=225 tail=33",), "L=225 tail=33, arm none: pass, so nothing to reproduce"),
        (
            ("--arm", "splitk"),
            "no failing cell of arm splitk, so nothing to reproduce: the run's verdict is fail",
        ),
    ],
)
def test_what_does_not_fail_is_nothing_to_reproduce(
    failed: Done, here: Here, words: tuple[str, ...], said: str
) -> None:
    done = here("reproduce", str(failed.directory), *words)
    assert (done.code, done.out) == (0, f"{said}\n")


def test_what_cannot_be_used_is_exit_2_with_the_way_on(failed: Done, here: Here) -> None:
    done = here("reproduce", str(failed.directory), "L=193 tial=1")
    assert (done.code, "did you mean 'L=193 tail=1'?" in done.err) == (2, True)
    assert here("reproduce", str(failed.directory), "--replay", "nowhere").code == 2
    done = here("reproduce", ".")
    assert (done.code, "is not a run" in done.err) == (2, True)


def test_a_torn_record_is_read_up_to_the_tear_and_a_bad_line_is_named(
    failed: Done, here: Here, tmp_path: Path
) -> None:
    lines = (failed.directory / "observations.jsonl").read_text().splitlines(keepends=True)
    copy = tmp_path / "copy"
    shutil.copytree(failed.directory, copy)

    def again(text: str) -> Done:
        (copy / "observations.jsonl").write_text(text)
        return here("reproduce", "copy")

    torn = again("".join(lines)[:-40])
    assert (torn.code, torn.out.count("curl -sS")) == (0, 2), torn.err
    bad = again("".join([lines[0], "{}\n", *lines[1:]]))
    assert (bad.code, "observations.jsonl line 2 is not a record" in bad.err) == (2, True)
    (copy / "observations.jsonl").unlink()
    gone = here("reproduce", "copy")
    assert (gone.code, "cannot read" in gone.err) == (2, True)
