"""The keeper, as its own process: what it is told, and what is left afterwards."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

# Writes its pids, with a child in the same group and one in a session of its own.
TREE = """
import os, signal, subprocess, sys, time
if {stubborn}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(wait), subprocess.Popen(wait, start_new_session=True)]
with open({pids!r} + ".part", "w") as file:
    file.write(" ".join(str(pid) for pid in (os.getpid(), *(child.pid for child in children))))
os.rename({pids!r} + ".part", {pids!r})
{then}
"""


def start(
    folder: Path, *options: str, then: str = "time.sleep(600)", stubborn: bool = False
) -> "subprocess.Popen[str]":
    script = TREE.format(pids=str(folder / "pids"), then=then, stubborn=stubborn)
    return keeper(*options, "--", sys.executable, "-S", "-c", script)


def keeper(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fidelity.servers.keeper", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def output(process: "subprocess.Popen[str]") -> str:
    """All it writes until it ends by itself: closing its stdin, as communicate does, would end it."""
    assert process.stdout
    out = process.stdout.read()
    process.wait(20)
    return out


def tree(folder: Path) -> list[psutil.Process]:
    path = folder / "pids"
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    found = []
    for pid in path.read_text().split():
        try:
            found.append(psutil.Process(int(pid)))
        except psutil.NoSuchProcess:
            continue
    return found


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=10)[1]


@pytest.mark.parametrize("how", ["closed", signal.SIGTERM, signal.SIGHUP])
def test_the_tree_ends_with_the_run(how: str | signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path, "--finally", f"touch {tmp_path / 'last'}")
    processes = tree(tmp_path)
    assert len(processes) == 3
    if isinstance(how, str):
        assert process.stdin
        process.stdin.close()
    else:
        process.send_signal(how)
    process.wait(20)
    assert gone(processes)
    assert (tmp_path / "last").exists()


def test_one_that_will_not_end_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, "--grace", "0.3", stubborn=True)
    processes = tree(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert gone(processes)


def test_children_of_one_that_crashed_are_ended(tmp_path: Path) -> None:
    process = start(tmp_path, then="os.kill(os.getpid(), 9)")
    out = output(process)
    assert process.returncode == 128 + 9, out
    assert out == ""
    assert tree(tmp_path) == []


def test_the_exit_code_and_the_environment_are_the_commands(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['NAME']); sys.exit(7)"
    process = keeper("--set", "NAME=a=b", "--", sys.executable, "-c", script)
    out = output(process)
    assert (process.returncode, out) == (7, "a=b\n")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    process = keeper("--", str(tmp_path / "none"))
    out = output(process)
    assert (process.returncode, out) == (127, f"cannot run {tmp_path / 'none'}: No such file or directory\n")
