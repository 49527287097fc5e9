"""Waiting for a started server, and what to do about one that did not make it."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from fidelity.errors import StartError
from fidelity.servers.running import RunningServer, last_line, last_lines

POLL = 0.5
PROBE_TIMEOUT = 10.0
_LOG_END = 200_000
_KILLED = 128 + 9

# The first that is in the log counts: the words of a runtime before those of the server it runs.
_CAUSES = (
    ("/dev/kfd", "this machine shows no AMD GPU (/dev/kfd): see `fidelity doctor`"),
    ("cannot connect to the docker daemon", "start the container runtime's daemon"),
    ("could not select device driver", "this machine's container runtime has no GPU support installed"),
    ("out of memory", "free the GPU, or give the server a smaller --mem-fraction-static after `--`"),
    ("not enough memory", "free the GPU, or give the server a larger --mem-fraction-static after `--`"),
    ("address already in use", "another process took the port: run again"),
    ("unrecognized arguments", "this version of sglang has no such flag: see its --help"),
    (
        "is not a local folder and is not a valid model",
        "check --model: a folder, a hub id, or a preset's name",
    ),
    ("repository not found", "check --model and HF_TOKEN: the hub has no such model for you"),
    ("gatedrepoerror", "ask for access to the model on the hub, and set HF_TOKEN"),
    ("localentrynotfounderror", "download the model first, or name a local folder with --model"),
    ("no such file or directory", "check --model and the paths among the server's flags"),
)


def wait_until_ready(server: RunningServer, timeout: float) -> Iterator[str]:
    """Poll `/health_generate` until it answers 200, yielding each new last line of the log.

    Raises StartError when the process ends first or `timeout` seconds pass.
    """
    deadline = time.monotonic() + timeout
    said = ""
    answer = ""
    while (left := deadline - time.monotonic()) > 0:
        ended = server.died()
        if ended:
            code = server.process.returncode if server.process else 0
            raise StartError(ended, cause(server.log, code))
        status = _status(server.client, min(PROBE_TIMEOUT, left))
        if status == 200:
            return
        answer = f", /health_generate last answered {status}" if status else ""
        line = last_line(server.log)
        if line and line != said:
            said = line
            yield line
        time.sleep(POLL)
    raise StartError(
        f"the server was not ready within {timeout:g} s{answer}{last_lines(server.log)}",
        "a first start can compile kernels for a long time: raise --start-timeout",
    )


def cause(log: Path | None, code: int = 1) -> str:
    """What to do next about a server that ended with `code`, read off the end of its log."""
    text = ""
    if log is not None and log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END))
            text = file.read().decode("utf-8", "replace").lower()
    known = next((hint for words, hint in _CAUSES if words in text), None)
    if known is None and code == _KILLED:
        known = "it was killed, by the system where the machine's memory ran out (see its kernel log)"
    where = f"the whole log: {log}" if log else "see its log"
    return f"{known}; {where}" if known else where


def _status(client: httpx.Client, timeout: float) -> int | None:
    try:
        return client.get("/health_generate", timeout=timeout).status_code
    except httpx.TransportError:
        return None
