"""Interruptions: what was recorded is kept, reported as partial, and gone on with; no server is left
behind."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from .conftest import COMMAND, Done, Fidelity, environment, run_command

PLAN = ("run", "--model", "embedded", "--guard", "none", "--prompts", "4", "--seed", "3")


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [COMMAND, *words, "--output", str(folder / "run")],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_records(process: "subprocess.Popen[str]", directory: Path, count: int) -> None:
    path = directory / "observations.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"fewer than {count} records after 90 s")


def servers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "fidelity.refserver" in " ".join(child.cmdline())]


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_records_reports_and_resumes(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, *PLAN)
    wait_for_records(process, tmp_path / "run", 60)
    servers = servers_of(process)
    assert servers
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert gone(servers)
    partial = Done(130, out, err, tmp_path / "run")
    assert partial.summary["partial"] is True
    assert partial.summary["state"] != "pass"
    kept = partial.observations

    resumed = run_command(tmp_path, "run", "--resume", str(tmp_path / "run"), output=tmp_path / "run")
    assert resumed.code == 10, resumed.out + resumed.err
    assert resumed.observations[: len(kept)] == kept
    assert resumed.summary["partial"] is False
    suspect = resumed.cell("L=193 tail=1")
    assert (suspect["prompts"], suspect["corrupt"]) == (4, 4)
    complete = {obs["group"] for obs in kept if obs["role"] == "hit" and obs["send"] == 3}
    again = {obs["group"] for obs in resumed.observations[len(kept) :] if obs["role"] == "cold"}
    assert not complete & again
    namespaces = [(obs["namespace"], obs["send"]) for obs in resumed.observations if obs["role"] != "warmup"]
    assert len(namespaces) == len(set(namespaces))


def test_a_killed_run_leaves_no_server_and_a_readable_record(tmp_path: Path) -> None:
    process = start(tmp_path, *PLAN)
    wait_for_records(process, tmp_path / "run", 50)
    servers = servers_of(process)
    process.kill()
    process.communicate()
    assert gone(servers)
    with (tmp_path / "run" / "observations.jsonl").open("a") as file:
        file.write('{"schema":1,"order":')
    reported = run_command(tmp_path, "report", str(tmp_path / "run"), output=tmp_path / "run")
    assert reported.summary["partial"] is True
    resumed = run_command(tmp_path, "run", "--resume", str(tmp_path / "run"), output=tmp_path / "run")
    assert resumed.code == 10, resumed.out + resumed.err


def test_a_server_that_dies_mid_run_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    process = start(tmp_path, *PLAN)
    wait_for_records(process, tmp_path / "run", 50)
    for server in servers_of(process):
        server.kill()
    out, err = process.communicate(timeout=60)
    done = Done(process.returncode, out, err, tmp_path / "run")
    said = " ".join((out + err).split())
    assert "stopped answering" in said
    assert "--resume" in said
    assert done.code in (3, 10)
    assert done.summary["status"] == "failed"
    assert len(done.observations) >= 50
    resumed = run_command(tmp_path, "run", "--resume", str(tmp_path / "run"), output=tmp_path / "run")
    assert resumed.code == 10, resumed.out + resumed.err
    assert resumed.summary["status"] == "complete"


def test_max_minutes_ends_with_a_partial_report(fidelity: Fidelity) -> None:
    started = time.monotonic()
    done = fidelity("run", "--model", "embedded", "--guard", "splitk", "--max-minutes", "0.08")
    assert time.monotonic() - started < 40
    assert done.code == 11, done.out + done.err
    assert done.summary["status"] == "out of time"
    assert done.summary["partial"] is True


def test_a_recorded_run_is_judged_again_without_a_server(fidelity: Fidelity) -> None:
    done = fidelity(*PLAN)
    before = (done.directory / "summary.json").read_text()
    for name in ("summary.json", "report.md", "junit.xml"):
        (done.directory / name).unlink()
    again = fidelity("report", str(done.directory), output=done.directory)
    assert again.code == done.code == 10
    assert json.loads((done.directory / "summary.json").read_text()) == json.loads(before)
    assert (done.directory / "report.md").exists()
    assert (done.directory / "junit.xml").exists()


def test_the_same_seed_sends_the_same_prompts_in_the_same_order(tmp_path: Path) -> None:
    runs = [
        run_command(tmp_path, *words, output=tmp_path / name)
        for name, words in (("a", PLAN), ("b", PLAN), ("c", (*PLAN[:-1], "4")))
    ]
    sent = [
        [(obs["role"], obs["prompt"], obs["length"], obs["input_ids"]) for obs in done.observations]
        for done in runs
    ]
    assert sent[0] == sent[1]
    assert sent[0] != sent[2]


def test_check_on_a_server_started_by_hand(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--fault", "split-k-nan"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        done = run_command(tmp_path, "check", url, "--prompts", "3")
        assert done.code == 10, done.out + done.err
        assert done.cell("L=193 tail=1")["corrupt"] == 3
        batches = [obs for obs in done.observations if obs["role"] == "warmup" and obs["cell"] == "warmup 16"]
        assert len(batches) <= 1, "a server that is not ours is never sent a batch"
    finally:
        server.terminate()
        server.wait(10)
