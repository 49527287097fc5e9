"""Did the rows of a list-valued request run together? By the server's own log, or its load figures meanwhile.

sglang hands a list of token ids to its scheduler as one message, and a list of texts one by one; a limit on
prefill tokens or on running requests can part either. What was asked for is therefore no evidence.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from fidelity.engines import solitude
from fidelity.servers.running import RunningServer

LOG, METRICS, OVERLAP, UNTOLD, SPLIT = "log", "metrics", "overlap", "untold", "split"
"""What an observation's `formed` can begin with; SPLIT goes on with the sizes of the batches, as in 1+3.
UNTOLD is overlap on a server that has neither a log of ours nor load figures."""

_PREFILL = re.compile(rb"Prefill batch\b[^\n]*?#new-seq: (\d+)[^\n]*\n")
_PATIENCE = 0.5  # seconds that a log line may trail the reply
_PAUSE = 0.02  # seconds between two looks


@dataclass(frozen=True)
class Formed:
    """`how`: log and metrics show that all rows ran together; overlap (of their times) and untold let it be
    assumed; empty for a single row that nothing tells of. `alone` as in `solitude.Witness`."""

    how: str
    alone: bool | None


class Witness:
    """Watches one server: by its log where that names prefill batches, else by its load figures."""

    def __init__(self, server: RunningServer) -> None:
        self._client = server.client
        self._log = server.log if server.log is not None and _batches(server.log, 0) else None
        # A server that we started has no other clients.
        self._watch = None if server.owned else solitude.Watch(server.client)

    @contextmanager
    def watching(self, rows: int, computed: int) -> Iterator[Callable[[], Formed]]:
        """Around the sending of one request of so many rows, which has `computed` prompt tokens to compute.
        What it yields is called once the answer is there, any number of times."""
        told: list[Formed] = []
        before = self._watch.before() if self._watch else None
        start = self._log.stat().st_size if self._log else 0
        with _most_running(self._client, quiet=self._log is not None) as most:

            def formed() -> Formed:
                if not told:
                    how = _by_log(self._log, start, rows) if self._log else None
                    running = most()
                    if how is None and running == rows:
                        how = METRICS
                    alone = self._alone(before, computed)
                    if how is None and rows > 1:
                        how = OVERLAP if self._tells() else UNTOLD
                    told.append(Formed(how or "", alone and running <= rows))
                return told[0]

            yield formed

    def _tells(self) -> bool:
        """Is there anything by which the server could have shown it?"""
        ranks = None if self._log else solitude.loads(self._client)
        return self._log is not None or (ranks is not None and solitude.running(ranks) is not None)

    def _alone(self, before: solitude.Load | None, computed: int) -> bool | None:
        if self._watch is None or before is None:
            return None
        self._watch.sent(computed)
        return self._watch.after(before).alone


def _by_log(log: Path, start: int, rows: int) -> str | None:
    """By what the log says from byte `start` on; None where it says nothing of that many rows."""
    patient_until = time.monotonic() + _PATIENCE
    while True:
        sizes = _batches(log, start)
        if rows in sizes:
            return LOG
        if sum(sizes) >= rows:
            return f"{SPLIT} {'+'.join(map(str, sizes))}"
        if time.monotonic() > patient_until:
            return None
        time.sleep(_PAUSE)


def _batches(log: Path, start: int) -> list[int]:
    """Requests in each prefill batch that the log names, from byte `start` on, in whole lines."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return [int(count) for count in _PREFILL.findall(file.read())]
    except OSError:
        return []


@contextmanager
def _most_running(client: httpx.Client, *, quiet: bool) -> Iterator[Callable[[], int]]:
    """Looks at the load figures from a thread; what it yields ends that and gives the most requests seen
    running, 0 where the server does not tell. `quiet` does not look."""
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(_PAUSE):
            ranks = solitude.loads(client)
            count = None if ranks is None else solitude.running(ranks)
            if count is None:
                return
            seen.append(count)

    thread = threading.Thread(target=look, name="loads", daemon=True)
    if not quiet:
        thread.start()

    def most() -> int:
        done.set()
        if not quiet:
            thread.join()
        return max(seen, default=0)

    try:
        yield most
    finally:
        most()
