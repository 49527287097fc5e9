"""Several runs at once, each worker a process of its own with one server at a time."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice

from fidelity.selftest.run import Outcome, Task, run


def outcomes(tasks: Iterable[Task], jobs: int) -> Iterator[Outcome]:
    """Each as soon as it is there; a task is taken when a worker is free for it. Whoever stops listening ends
    the rest: what has not begun never does, and the runs at work are waited for."""
    # Read when a worker first imports numpy: many BLAS threads at once only wait for each other.
    for library in ("OPENBLAS", "OMP", "MKL", "VECLIB"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        waiting = iter(tasks)
        # No more than are at work: what a worker has been given cannot be taken back from it.
        running = {pool.submit(run, task) for task in islice(waiting, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()
            running |= {pool.submit(run, task) for task in islice(waiting, len(done))}
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """In a worker: leave Ctrl-C and SIGTERM, which may come to all of them, to the parent, and end with
    it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler, not SIG_IGN: the servers that are started here would inherit that.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
