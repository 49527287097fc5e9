"""Keeps a server's process tree from outliving the run that started it: `python -m fidelity.servers.keeper
-- ARGV`.

The run holds this process's stdin. When that closes (the run ended, or was killed with no chance to clean
up) or a SIGTERM comes, the whole tree is ended; `--finally` names a command to run last, such as removing a
container. `--set NAME=VALUE` is added to the command's environment and not to this process's own.
"""

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
from types import FrameType

import psutil

GRACE = 20.0
"""Seconds from SIGTERM to SIGKILL."""
LAST_TIMEOUT = 60.0
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the command, end its tree when told to; returns its exit code, 128 + n after signal n."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--finally", dest="last", default="")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--grace", type=float, default=GRACE)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    environment = {**os.environ, **dict(pair.split("=", 1) for pair in options.set)}
    stopping = threading.Event()

    def stop(_signal: int = 0, _frame: FrameType | None = None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    _adopt_orphans()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    except OSError as exc:
        sys.stderr.write(f"cannot run {command[0]}: {exc.strerror}\n")
        return 127
    threading.Thread(target=_until_closed, args=(stopping,), daemon=True).start()
    while child.poll() is None and not stopping.wait(0.1):
        pass
    end_children(options.grace)
    code = child.wait()
    if options.last:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                shlex.split(options.last),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=LAST_TIMEOUT,
                check=False,
            )
    return code if code >= 0 else 128 - code


def end_children(grace: float) -> None:
    """SIGTERM to every descendant of this process, SIGKILL to what is left after `grace` seconds."""
    tree = _descendants()
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(tree, timeout=grace)
    # Killing one makes its children this process's own, where the next look finds them.
    while tree := _descendants():
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, timeout=1)


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _until_closed(stopping: threading.Event) -> None:
    # Not through sys.stdin: its lock, held by this thread, would be fatal when the interpreter ends.
    while os.read(0, 4096):
        pass
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
