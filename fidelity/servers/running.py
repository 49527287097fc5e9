"""A server that can be sent requests, however it was come by."""

from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import httpx


@dataclass(frozen=True)
class RunningServer:
    """`owned`: started by this run, so it may be loaded and is ended with it. `log` is its log file,
    `image` the container image it runs in, with its digest."""

    url: str
    owned: bool
    client: httpx.Client
    log: Path | None = None
    process: "Popen[str] | None" = None
    image: str | None = None

    def died(self) -> str | None:
        """Why the process is gone, with its last log lines; None while it runs or when it is not ours."""
        if self.process is None or self.process.poll() is None:
            return None
        return f"the server ended with code {self.process.returncode}{last_lines(self.log)}"


def last_lines(log: Path | None, count: int = 5) -> str:
    """The end of a log as text to append to a message; empty when there is none."""
    if log is None or not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-count:]
    return "; its last lines:\n  " + "\n  ".join(lines) if lines else ""
