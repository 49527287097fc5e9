"""Runs of the rows summed up: caught or passed how often, at what cost, with which diagnosis."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from fidelity.selftest.row import MUST_FAIL, Row
from fidelity.selftest.run import Outcome

ENOUGH = 0.95
"""Share of seeds that a rate must be caught with to count as caught."""

NOTHING = "none"

SHOWN = 75
"""Characters of a reason."""


@dataclass(frozen=True)
class Line:
    """One row over its seeds. `held` of `runs` at rate 1 were as they must be; `rates` maps each share of
    corrupt prompts that was tried to its caught and all runs; `requests` and `seconds` are medians;
    `diagnosis` is the commonest first hypothesis, `right` of `runs` the expected one."""

    row: Row
    runs: int
    held: int
    verdicts: dict[str, int]
    seen: str
    requests: int
    seconds: float
    diagnosis: str
    right: int
    rates: dict[float, tuple[int, int]]
    wrong: tuple[str, ...]

    @property
    def smallest(self) -> float | None:
        """The smallest rate caught with ENOUGH of the seeds, with every larger one that was tried; None where
        there is none."""
        found = None
        for rate in sorted(self.rates, reverse=True):
            if not caught_enough(*self.rates[rate]):
                break
            found = rate
        return found


def caught_enough(caught: int, runs: int) -> bool:
    """Are so many of the runs caught that the rate counts as caught?"""
    return runs > 0 and caught >= math.ceil(ENOUGH * runs)


def summarise(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> list[Line]:
    """One line for each row that was run, in the order of `rows`."""
    return [line for row in rows if (line := _line(row, [one for one in outcomes if one.row == row.name]))]


def first_diagnosis(row: Row, outcome: Outcome) -> str:
    """The first hypothesis; of several of the same rank the expected one, where it is among them."""
    if row.diagnosis in outcome.diagnoses:
        return row.diagnosis
    return outcome.diagnoses[0] if outcome.diagnoses else NOTHING


def confusion(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """At rate 1, how often each expected diagnosis was answered with each: faults with an expected one, and
    healthy servers, for which it is none."""
    found: dict[str, Counter[str]] = {}
    for expected, given in _pairs(lines, outcomes):
        found.setdefault(expected, Counter())[given] += 1
    return found


def _pairs(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    rows = {line.row.name: line.row for line in lines}
    for one in outcomes:
        row = rows.get(one.row)
        if row is None or one.rate != 1:
            continue
        if row.group == "control":
            yield NOTHING, first_diagnosis(row, one)
        elif row.diagnosis and row.group in MUST_FAIL:
            yield row.diagnosis, first_diagnosis(row, one)


def _line(row: Row, outcomes: Sequence[Outcome]) -> Line | None:
    whole = [one for one in outcomes if one.rate == 1]
    if not whole:
        return None
    by_rate: dict[float, list[bool]] = {}
    for one in outcomes:
        by_rate.setdefault(one.rate, []).append(one.holds)
    given = Counter(first_diagnosis(row, one) for one in whole)
    seen = Counter(one.caught_by or _short(one.reason) for one in whole)
    return Line(
        row=row,
        runs=len(whole),
        held=sum(one.holds for one in whole),
        verdicts=dict(Counter(one.state for one in whole)),
        seen=seen.most_common(1)[0][0],
        requests=round(median(one.requests for one in whole)),
        seconds=median(one.seconds for one in whole),
        diagnosis=given.most_common(1)[0][0],
        right=given[row.diagnosis or NOTHING],
        rates={rate: (sum(held), len(held)) for rate, held in by_rate.items()},
        wrong=tuple(f"seed {one.seed}: {one.state}: {one.reason}" for one in whole if not one.holds),
    )


def _short(reason: str) -> str:
    """A reason without the arm before it and the counts behind it, cut where it is long."""
    said = reason.removeprefix("arm none: ").split(" (")[0]
    return said if len(said) <= SHOWN else said[: SHOWN - 3] + "..."
