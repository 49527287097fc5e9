"""A server that can be sent requests, however it was come by."""

from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired

import httpx


@dataclass(frozen=True)
class RunningServer:
    """`owned`: started by this run, so it may be loaded and is ended with it. `log` is its log file, `image`
    the container image it runs in, with its digest, `markers` the folder where its processes tell of their
    guard."""

    url: str
    owned: bool
    client: httpx.Client
    log: Path | None = None
    process: "Popen[str] | None" = None
    image: str | None = None
    markers: Path | None = None

    def died(self, patience: float = 0.0) -> str | None:
        """Why the process is gone, with its last log lines; None while it runs or when it is not ours.

        One that dies closes its connections first: `patience` seconds are given to it.
        """
        if self.process is None:
            return None
        if self.process.poll() is None:
            try:
                self.process.wait(patience)
            except TimeoutExpired:
                return None
        return f"the server ended with code {self.process.returncode}{last_lines(self.log)}"


def last_line(log: Path | None) -> str:
    """The newest line of a log, empty when there is none."""
    lines = _end(log)
    return lines[-1] if lines else ""


def last_lines(log: Path | None, count: int = 5) -> str:
    """The end of a log as text to append to a message; empty when there is none."""
    lines = _end(log)[-count:]
    return "; its last lines:\n  " + "\n  ".join(lines) if lines else ""


def _end(log: Path | None) -> list[str]:
    if log is None or not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        return file.read().decode("utf-8", "replace").strip().splitlines()
