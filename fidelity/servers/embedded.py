"""The embedded engine as its own process on loopback, reached over HTTP like any other server."""

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fidelity.errors import StartError
from fidelity.plan import Arm, Target
from fidelity.servers.running import RunningServer, last_lines

START_TIMEOUT = 60.0
STOP_TIMEOUT = 5.0


def command(target: Target, arm: Arm, port: int = 0) -> list[str]:
    """The command line of the embedded server for one arm."""
    page_size = target.page_size or (1 if target.strategy == "no_buffer" else 64)
    options = {
        "--port": port,
        "--profile": target.profile,
        "--fault": target.fault,
        "--guard": arm.guard,
        "--strategy": target.strategy,
        "--cu": target.cu,
        "--noise": target.noise,
        "--page-size": page_size,
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    if target.speculative:
        words += ["--speculative", "NEXTN"]
    if target.deterministic:
        words.append("--deterministic")
    words += target.flags
    # -P keeps the current folder off the module path: the server is the installed one.
    return [sys.executable, "-P", "-m", "fidelity.refserver", *words]


@contextmanager
def embedded(target: Target, arm: Arm, log: Path, seed: int) -> Iterator[RunningServer]:
    """Start it, yield it, end it; a parent that dies closes its stdin, which ends it too. Raises
    StartError."""
    words = [*command(target, arm), "--seed", str(seed), "--watch-stdin"]
    with log.open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        url = _listening(process, log)
        with httpx.Client(base_url=url, timeout=target.timeout) as client:
            yield RunningServer(url=url, owned=True, client=client, log=log, process=process)
    finally:
        stop(process)


def stop(process: "subprocess.Popen[str]") -> None:
    """End a server process: SIGTERM, then SIGKILL after a few seconds."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _listening(process: "subprocess.Popen[str]", log: Path) -> str:
    if process.stdout is None:
        raise StartError("the embedded server has no output to read its address from")
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        line = process.stdout.readline() if ready else ""
        if line:
            try:
                return str(json.loads(line)["url"])
            except (ValueError, LookupError, TypeError) as exc:
                raise StartError(f"the embedded server said {line.strip()!r} instead of its address") from exc
        if ready or process.poll() is not None:
            process.wait(STOP_TIMEOUT)
            raise StartError(f"the embedded server ended with code {process.returncode}{last_lines(log)}")
    raise StartError(f"the embedded server did not listen within {START_TIMEOUT:.0f} s{last_lines(log)}")
