"""How fast each arm is, and the second against the first. Speed never decides fidelity.

With `plan.speed.max_slowdown` the cost of a guard is a gate of its own: its slowdown is the ratio of times
minus 1, and the gate fails where the interval's lower limit is above it, passes where the upper one is not.
The interval is of the spread between prompts, so the estimate of each block must lie on the same side too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fidelity.judging.timings import (
    PER_SECOND,
    SINGLE_RATE,
    TPOT,
    TTFT_COLD,
    Timings,
    by_prompt,
    corrupt_answers,
    paired,
    timings,
    visits_of,
)
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.stats.bootstrap import Interval, median_interval, paired_ratio
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    SHOWN,
    CellVerdict,
    Compared,
    Comparison,
    Figure,
    Reading,
)

GATED = (TTFT_COLD, TPOT, SINGLE_RATE)
_WORST_FIRST = (FAIL, INCONCLUSIVE, PASS)


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """One cell that says what was measured; no figure of it decides."""
    found = timings(observations)
    values = found.values
    visits = visits_of(values)
    missed = dict(found.missed)
    decoded = {key for name in (TPOT, SINGLE_RATE) for key in values.get(name, {})}
    planned = plan.speed.prompts * max(len(visits), 1)
    if not values:
        state, reason = NOT_EXERCISED, next(iter(missed), "nothing was timed")
    else:
        state = PASS
        told = [_said(name, found, plan.seed) for name in GATED if name in values]
        reason = f"shown, decides nothing: {', '.join(told or [_said(next(iter(values)), found, plan.seed)])}"
    return [
        CellVerdict(
            arm=arm.name,
            probe="speed",
            name="speed",
            kind="",
            state=state,
            reason=reason,
            why="streamed, without logprobs",
            prompts=planned,
            exercised=len(decoded),
            sends=found.sent,
            # No rate of anything is bounded here.
            rate_upper=0.0,
            missed=missed,
            readings=tuple(_readings(found, plan.seed)),
            notes=tuple(_notes(plan, found, visits, observations)),
        )
    ]


def compare(
    plan: RunPlan,
    records: Mapping[str, ArmRecord],
    by_arm: Mapping[str, Sequence[Observation]],
    limits: Thresholds,
) -> list[Comparison]:
    """The first arm against each other one."""
    first, *others = plan.arms
    return [_compare(plan, first, other, by_arm) for other in others]


def slowdown(ratio: Interval, unit: str) -> Interval:
    """By how much the second arm takes longer, as a share; `ratio` is second over first."""
    if unit != PER_SECOND:
        return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1, ratio.n)
    with np.errstate(divide="ignore"):
        value, low, high = (float(1 / np.float64(x) - 1) for x in (ratio.value, ratio.high, ratio.low))
    return Interval(value, low, high, ratio.n)


def gate(slower: Interval, blocks: Sequence[float], allowed: float) -> str:
    """Pass, fail or inconclusive from a slowdown and the estimates of its blocks."""
    if slower.low > allowed and all(block > allowed for block in blocks):
        return FAIL
    if slower.high <= allowed and all(block <= allowed for block in blocks):
        return PASS
    return INCONCLUSIVE


@dataclass(frozen=True)
class _Row:
    """One quantity of two arms: second over first, and by block."""

    shown: Compared
    ratio: Interval
    blocks: dict[int, Interval]

    @property
    def name(self) -> str:
        return self.shown.name


def _compare(
    plan: RunPlan, first: Arm, other: Arm, by_arm: Mapping[str, Sequence[Observation]]
) -> Comparison:
    arms = [(arm.name, timings(by_arm.get(arm.name, ()))) for arm in (first, other)]
    rows = list(_rows(arms[0][1], arms[1][1], plan.seed))
    allowed = plan.speed.max_slowdown
    gated = [row for row in rows if row.name in GATED]
    said = [
        f"{row.name} x {row.ratio.value:.3f} [{row.ratio.low:.3f}, {row.ratio.high:.3f}]" for row in gated
    ]
    state, figures = SHOWN, []
    if allowed is not None:
        figures = [_figure(row, allowed) for row in gated]
        states = [_gate(row, allowed) for row in gated]
        missing = [name for name in GATED if name not in {row.name for row in gated}]
        if missing:
            said.append(f"not measured on both arms: {', '.join(missing)}")
        said.append(f"a slowdown of {allowed * 100:g} % is allowed")
        if not other.baseline:
            state = min([*states, *([INCONCLUSIVE] if missing else [])], key=_WORST_FIRST.index)
    said += [told for name, found in arms if (told := _drift_said(name, found, plan.seed))]
    said += [told for arm in (first, other) if (told := _no_baseline(arm, by_arm.get(arm.name, ())))]
    readings = [
        Reading(f"{row.name}, ratio in block {visit}", block.value, "", block.low, block.high)
        for row in rows
        for visit, block in row.blocks.items()
    ]
    for name, found in arms:
        readings += _drift(found, plan.seed, f"{name}: ")
    return Comparison(
        probe="speed",
        name=f"{other.name} against {first.name}",
        arms=(first.name, other.name),
        state=state,
        reason="; ".join(said) if rows else "nothing was timed on both arms",
        rows=tuple(row.shown for row in rows),
        figures=tuple(figures),
        readings=tuple(readings),
    )


def _rows(first: Timings, second: Timings, seed: int) -> Iterator[_Row]:
    """Every quantity that both arms have for some prompt on the same visit."""
    for name, values in first.values.items():
        again = second.values.get(name, {})
        visits = sorted({visit for visit, _ in values.keys() & again.keys()})
        if visits:
            a, b = paired(values, again)
            ratio = paired_ratio(a, b, seed=seed)
            medians = float(np.median(a)), float(np.median(b))
            shown = Compared(name, first.units[name], *medians, ratio.value, ratio.low, ratio.high, ratio.n)
            blocks = {visit: paired_ratio(*paired(values, again, visit), seed=seed) for visit in visits}
            yield _Row(shown, ratio, blocks)


def _gate(row: _Row, allowed: float) -> str:
    unit = row.shown.unit
    blocks = [slowdown(block, unit).value for block in row.blocks.values()]
    return gate(slowdown(row.ratio, unit), blocks, allowed)


def _figure(row: _Row, allowed: float) -> Figure:
    upper = slowdown(row.ratio, row.shown.unit).high
    source = "speed.max_slowdown; 95 % bootstrap interval over prompts"
    return Figure(f"{row.name}: slowdown, upper limit", upper, "<=", allowed, source, bool(upper <= allowed))


def _readings(found: Timings, seed: int) -> Iterator[Reading]:
    for name in found.values:
        median = _median(name, found, seed)
        yield Reading(f"{name}, median", median.value, found.units[name], median.low, median.high)
    yield from _drift(found, seed)


def _drift(found: Timings, seed: int, whose: str = "") -> Iterator[Reading]:
    for name in GATED:
        ratio = _between_blocks(found, name, seed)
        if ratio is not None:
            yield Reading(f"{whose}{name}, block 2 over block 1", ratio.value, "", ratio.low, ratio.high)


def _between_blocks(found: Timings, name: str, seed: int) -> Interval | None:
    values = found.values.get(name, {})
    first = {(1, key): value for (visit, key), value in values.items() if visit == 1}
    again = {(1, key): value for (visit, key), value in values.items() if visit == 2}
    return paired_ratio(*paired(first, again), seed=seed) if first.keys() & again.keys() else None


def _drift_said(arm: str, found: Timings, seed: int) -> str:
    ratio = _between_blocks(found, TPOT, seed)
    if ratio is None:
        return ""
    return f"TPOT of {arm} moved by {(ratio.value - 1) * 100:+.1f} % between its blocks"


def _median(name: str, found: Timings, seed: int) -> Interval:
    return median_interval(np.array(list(by_prompt(found.values[name]).values())), seed=seed)


def _said(name: str, found: Timings, seed: int) -> str:
    return f"{name} {_median(name, found, seed).value:.3g} {found.units[name].removeprefix('tok/s')}".strip()


def _notes(
    plan: RunPlan, found: Timings, visits: Sequence[int], observations: Sequence[Observation]
) -> Iterator[str]:
    yield f"{found.discarded} sends to warm up and to fill the cache, discarded"
    yield f"blocks: {len(visits)}, each of {plan.speed.prompts} prompts of {plan.speed.tokens} new tokens"
    counts = ", ".join(f"{name} {len(by_prompt(values))}" for name, values in found.values.items())
    if counts:
        yield f"n: {counts}"
    corrupt, checked, why = corrupt_answers(observations)
    if corrupt:
        yield f"{corrupt} of {checked} warm-up answers are corrupt ({why}): this speed is no valid baseline"


def _no_baseline(arm: Arm, observations: Sequence[Observation]) -> str:
    corrupt, checked, why = corrupt_answers(observations)
    if not corrupt:
        return ""
    told = f"{corrupt} of {checked} warm-up answers of {arm.name} are corrupt ({why})"
    return f"{told}: its speed is no valid baseline"
