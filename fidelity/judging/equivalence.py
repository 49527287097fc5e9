"""Two arms on sends that a guard does not touch, held against what a restart of one server changes by itself.

A mixture-of-experts kernel need not repeat itself to the bit, so identical text is no criterion. For each
prompt, d(X, Y) compares the cold answers of two starts: JSD (lower bound) of the first token, and the mean
|delta logprob| of the prompt's own last tokens, in nats. With arms A, B and starts 1, 2

    apart = [d(A1, B1) + d(A2, B2)] / 2        again = [d(A1, A2) + d(B1, B2)] / 2

The arms are equivalent where the mean of `apart` over prompts is within max(kappa x mean of `again`, a least
margin) by its upper bootstrap limit (stats.equivalence.upper_limit), and differ where its lower one is not.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fidelity.compare import broken_rules
from fidelity.judging.apart import Apart, Starts, hold, starts
from fidelity.judging.few import count_faces
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.stats.bootstrap import ratio_of_means
from fidelity.stats.equivalence import margin, upper_limit
from fidelity.stats.topk import FloatArray
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

NAME = "cold, restarted"
JSD, MOVE = "JSD of the first token, lower bound", "|delta logprob| of prompt tokens"
MEANS = {
    JSD: "jsd",
    "KL of the first token, lower bound": "kl",
    "k3 score of prompt tokens": "k3",
    MOVE: "move",
}
"""What is averaged over prompts, and the field of `Apart` that holds it; all in nats."""

QUANTILES = (0.5, 0.9, 0.99)
_WORST_FIRST = (FAIL, INCONCLUSIVE, PASS)


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """One cell: a cold answer that breaks an absolute rule fails it; the rest is shown."""
    found = starts(observations)
    sent = [obs for start in found.values() for obs in start.values()]
    broken = _broken(sent)
    missed: Counter[str] = Counter()
    missed["the request failed"] = len({(o.visit, o.group) for o in observations}) - len(sent)
    missed["served from the cache"] = sum(bool(obs.answer.cached_tokens) for obs in sent)
    readings: list[Reading] = []
    if broken:
        state, reason = FAIL, f"{len(broken)} of {len(sent)} cold answers are broken: {broken[0][1]}"
    elif not _in_common([found]):
        state, reason = (
            NOT_EXERCISED,
            "nothing was answered on two starts" if sent else "nothing was measured",
        )
    else:
        again = hold(found[1], found[2])
        readings = list(_readings("", again))
        lost = int(np.count_nonzero(~np.isfinite(again.jsd) | ~np.isfinite(again.move)))
        state = PASS if not lost else NOT_EXERCISED if lost == len(again.prompts) else INCONCLUSIVE
        reason = f"no broken answer in {len(sent)} cold sends on two starts; {_brief(again)}"
        if lost:
            reason = f"{lost} of {len(again.prompts)} prompts and lengths have no logprobs to compare"
    return [
        CellVerdict(
            arm=arm.name,
            probe="equivalence",
            name=NAME,
            kind="",
            state=state,
            reason=reason,
            why="cold prefills on two starts of one server",
            prompts=len({obs.prompt for obs in observations}),
            exercised=len({obs.prompt for obs in sent}),
            corrupt=len({obs.prompt for obs, _ in broken}),
            sends=len(sent),
            corrupt_sends=len(broken),
            # No rate of anything is bounded here.
            rate_upper=0.0,
            rules=dict(Counter(rule.split(":")[0] for _, rule in broken)),
            faces=count_faces(sent),
            values=sum(obs.answer.values for obs in sent),
            missed={why: count for why, count in missed.items() if count},
            readings=tuple(readings),
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
    return [_compare(plan, first, other, by_arm, limits) for other in others]


@dataclass(frozen=True)
class _Pairs:
    """The two arms on each start, and each with itself."""

    between: tuple[Apart, Apart]
    first_again: Apart
    second_again: Apart

    def values(self, quantity: str) -> tuple[FloatArray, FloatArray]:
        """Per prompt: again, apart."""
        again = [one.by_prompt(quantity) for one in (self.first_again, self.second_again)]
        apart = [one.by_prompt(quantity) for one in self.between]
        common = sorted(set.intersection(*(set(one) for one in (*again, *apart))))
        return tuple(  # type: ignore[return-value]
            np.array([np.mean([one[prompt] for one in pair]) for prompt in common]) for pair in (again, apart)
        )


def _compare(
    plan: RunPlan,
    first: Arm,
    other: Arm,
    by_arm: Mapping[str, Sequence[Observation]],
    limits: Thresholds,
) -> Comparison:
    a, b = (starts(by_arm.get(arm.name, ())) for arm in (first, other))
    names = (first.name, other.name)
    title = f"{other.name} against {first.name}"
    if not _in_common((a, b)):
        once = [name for name, own in zip(names, (a, b), strict=True) if len(own) < 2]
        reason = (
            f"{once[0]} was not measured on two starts" if once else "no prompt was answered on every start"
        )
        return Comparison("equivalence", title, names, SHOWN if other.baseline else INCONCLUSIVE, reason)
    pairs = _Pairs((hold(a[1], b[1]), hold(a[2], b[2])), hold(a[1], a[2]), hold(b[1], b[2]))
    figures, states = [], []
    for name, least in ((JSD, limits.least_margin), (MOVE, limits.least_move)):
        figure, state = _decide(name, *pairs.values(MEANS[name]), least, limits, plan.seed)
        figures.append(figure)
        states.append(state)
    state = min(states, key=_WORST_FIRST.index)
    reason = _said(pairs, names, figures)
    broken = [_broken([obs for start in own.values() for obs in start.values()]) for own in (a, b)]
    if broken[1]:
        state, reason = FAIL, f"cold answers of {other.name} are broken: {broken[1][0][1]}"
    elif broken[0]:
        state = SHOWN
        reason = f"cold answers of {first.name} are broken ({broken[0][0][1]}): nothing to be equivalent to"
    elif state == PASS and (lost := _lost((a, b), by_arm, names)):
        state, reason = INCONCLUSIVE, f"{lost} prompts and lengths were not answered on every start; {reason}"
    return Comparison(
        probe="equivalence",
        name=title,
        arms=names,
        state=SHOWN if other.baseline else state,
        reason=reason,
        rows=tuple(_rows(pairs, plan.seed)),
        figures=tuple(figures),
        readings=tuple(_all_readings(pairs, names)),
        headings=("reruns of one arm", "between the arms"),
    )


def _rows(pairs: _Pairs, seed: int) -> Iterator[Compared]:
    """Means over prompts with the interval of their ratio, and quantiles over all tokens without one."""
    count = 0
    for name, quantity in MEANS.items():
        again, apart = pairs.values(quantity)
        ratio = ratio_of_means(again, apart, seed=seed)
        count = ratio.n
        means = (float(again.mean()), float(apart.mean())) if count else (np.nan, np.nan)
        yield Compared(f"{name}, mean", "nat", *means, ratio.value, ratio.low, ratio.high, count)
    own = np.concatenate([pairs.first_again.deltas, pairs.second_again.deltas])
    other = np.concatenate([one.deltas for one in pairs.between])
    for level in QUANTILES if own.size and other.size else ():
        first, second = float(np.quantile(own, level)), float(np.quantile(other, level))
        times = second / first if first else np.nan
        yield Compared(f"{MOVE}, p{level * 100:g}", "nat", first, second, times, np.nan, np.nan, count)


def _decide(
    name: str, again: FloatArray, apart: FloatArray, least: float, limits: Thresholds, seed: int
) -> tuple[Figure, str]:
    """The figure a pass must hold, and the state it gives."""
    allowed = margin(float(again.mean()) if again.size else np.nan, limits.kappa, least)
    upper = upper_limit(apart, limits.confidence, seed)
    lower = -upper_limit(-apart, limits.confidence, seed)
    smallest = "thresholds.least_margin" if name == JSD else "thresholds.least_move"
    source = f"max(thresholds.kappa x rerun noise, {smallest}); BCa bootstrap over prompts"
    told = f"{name}, between the arms: upper limit of the mean, nats"
    holds = bool(upper <= allowed)
    figure = Figure(told, upper, "<=", allowed, source, holds)
    return figure, PASS if holds else FAIL if lower > allowed else INCONCLUSIVE


def _broken(sent: Sequence[Observation]) -> list[tuple[Observation, str]]:
    return [(obs, rules[0]) for obs in sent if (rules := broken_rules(obs.answer))]


def _in_common(arms: Sequence[Starts]) -> set[str]:
    """The prompts and lengths that were answered on both starts of every arm."""
    answered = [set(own.get(visit, {})) for own in arms for visit in (1, 2)]
    return set.intersection(*answered)


def _lost(arms: Sequence[Starts], by_arm: Mapping[str, Sequence[Observation]], names: Sequence[str]) -> int:
    """Prompts and lengths that were sent to any start and not answered by every one."""
    sent = {obs.group for name in names for obs in by_arm.get(name, ())}
    return len(sent - _in_common(arms))


def _said(pairs: _Pairs, names: tuple[str, str], figures: Sequence[Figure]) -> str:
    between, again = pairs.between, (pairs.first_again, pairs.second_again)
    kl = [f"KL between the arms {np.mean([one.kl.mean() for one in between]):.2g} nat"]
    kl += [f"{name} with itself {one.kl.mean():.2g}" for name, one in zip(names, again, strict=True)]
    apart, own = (np.quantile(np.concatenate([one.deltas for one in pair]), 0.5) for pair in (between, again))
    limits = [
        f"{one.name.split(',')[0]} at most {one.value:.2g}, allowed {one.threshold:.2g}" for one in figures
    ]
    return "; ".join([", ".join(kl), f"|delta logprob| p50 {apart:.2g} against {own:.2g}", *limits])


def _brief(one: Apart) -> str:
    return f"two starts: KL {one.kl.mean():.2g} nat, |delta logprob| p50 {np.quantile(one.deltas, 0.5):.2g}"


def _readings(whose: str, one: Apart) -> Iterator[Reading]:
    for name, quantity in MEANS.items():
        yield Reading(f"{whose}{name}, mean", float(np.mean(getattr(one, quantity))), "nat")
    for level in QUANTILES:
        value = float(np.quantile(one.deltas, level)) if one.deltas.size else np.nan
        yield Reading(f"{whose}{MOVE}, p{level * 100:g}", value, "nat")
    yield Reading(f"{whose}prompt tokens compared", one.deltas.size)


def _all_readings(pairs: _Pairs, names: tuple[str, str]) -> Iterator[Reading]:
    for number, one in enumerate(pairs.between, start=1):
        yield from _readings(f"{names[0]} against {names[1]}, start {number}: ", one)
    yield from _readings(f"{names[0]} against itself: ", pairs.first_again)
    yield from _readings(f"{names[1]} against itself: ", pairs.second_again)
