"""Run every case under every guard and fill, and time it; answers come as they are known."""

import statistics
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from fidelity.guards.inserver.marker import Marker
from fidelity.kernel.guarding import guarded, proof
from fidelity.kernel.operator import Operator, Prepared
from fidelity.kernel.work import FILLS, Answer, Case, Check, Done, Timing, Work

TIMED = ("none", "unsplit", "splitk")
"""Before, split disabled, guard."""


def run(work: Work, operator: Operator, folder: Path) -> Iterator[Answer]:
    """Every check, then every timing of a TP, TP by TP; the guards' proofs last. Their markers go to folders
    in `folder`."""
    started = time.perf_counter()
    yield operator.machine()
    names = dict.fromkeys((*work.guards, *TIMED))
    markers = {name: Marker(name, folder / f"kernel-{name}") for name in names}
    for name in names:
        (folder / f"kernel-{name}").mkdir(exist_ok=True)
    for _, group in groupby(work.cases, key=lambda case: case.tp):
        cases = list(group)
        for name in work.guards:
            with guarded(operator.module, markers[name]):
                for case in cases:
                    yield from _check(work, operator, case, name)
        for name in TIMED if work.repeats else ():
            with guarded(operator.module, markers[name]):
                for case in cases:
                    if case.m == 1 or case.affected:
                        prepared = operator.prepare(case, work.seed)
                        yield _time(prepared, case, name, work.repeats, captured=operator.captured)
    yield from (proof(markers[name]) for name in work.guards if name != "none")
    yield Done(round(time.perf_counter() - started, 2))


def _check(work: Work, operator: Operator, case: Case, guard: str) -> Iterator[Check]:
    prepared = operator.prepare(case, work.seed)
    for fill, value in FILLS.items():
        error, filled = prepared.check(value)
        yield Check(case.tp, case.m, guard, fill, filled, error)


def _time(prepared: Prepared, case: Case, guard: str, repeats: int, *, captured: bool) -> Timing:
    samples = prepared.microseconds(repeats)
    return Timing(
        case.tp, case.m, guard, statistics.median(samples), min(samples), max(samples), captured=captured
    )
