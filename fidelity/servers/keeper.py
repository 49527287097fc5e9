"""Keeps a server's process tree from outliving the run that started it: `python -m fidelity.servers.keeper
-- ARGV`.

The run holds this process's stdin. When that closes (the run ended, or was killed with no chance to clean
up) or a SIGTERM comes, the whole tree is ended; `--finally` names a command to run last, such as removing a
container.
"""

import argparse
import contextlib
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


def main() -> int:
    """Run the command, end its tree when told to; returns its exit code, 128 + n after signal n."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--finally", dest="last", default="")
    parser.add_argument("--grace", type=float, default=GRACE)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    stopping = threading.Event()

    def stop(_signal: int = 0, _frame: FrameType | None = None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    # A Ctrl-C goes to the whole foreground group; the run decides when the server ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_until_closed, args=(stopping,), daemon=True).start()
    while child.poll() is None and not stopping.wait(0.1):
        pass
    end_tree(child.pid, options.grace)
    code = child.wait()
    if options.last:
        subprocess.run(
            shlex.split(options.last), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
    return code if code >= 0 else 128 - code


def end_tree(pid: int, grace: float) -> None:
    """SIGTERM to the process group and every descendant of `pid`, SIGKILL to what is left after `grace`
    seconds."""
    tree = _tree(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(tree, timeout=grace)
    for process in {*alive, *_tree(pid)}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _until_closed(stopping: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
