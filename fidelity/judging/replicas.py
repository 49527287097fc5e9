"""Replicas of one deployment held against each other: their cold answers to the same ids.

A replica can agree with itself everywhere and be wrong, as with other weights. Two replicas are apart where a
first token of a prompt that one is sure of differs beyond a near-tie, or where the mean JSD of their answers
is beyond what the replicas' own noise (cold against cold again) allows. Where most agree with each other, the
others are odd ones. An odd one fails where at least LEAST_FLIPS prompts have another first token than every
one of the majority says: agreeing servers are as good as a reference, and one flip might be company at that
moment. A single flip, distributions that moved without any, and two that differ with no third to say which is
wrong leave the run inconclusive: other hardware may compute them rightly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fidelity.compare import compare_first_token, top_probability
from fidelity.evidence import Group, groups_of, not_cold
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation
from fidelity.plan import RunPlan, Thresholds
from fidelity.stats.divergence import divergence
from fidelity.stats.equivalence import margin, upper_limit
from fidelity.stats.topk import TopK
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, Compared, Comparison

PROBE = "resend"
NAME = "cold answers of the replicas"
LEAST_FLIPS = 2
SALTED = "prompts are salted per address; they were not sent the same tokens"

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """Two replicas over the `count` sends of the same ids. `flips` are prompts with other first tokens; `jsd`
    is the mean over prompts, `allowed` what noise accounts for, in nats; `moved`: it is beyond."""

    count: int
    prompts: int
    flips: frozenset[str]
    jsd: float
    allowed: float
    moved: bool

    @property
    def apart(self) -> bool:
        return bool(self.flips) or self.moved

    @property
    def alike(self) -> bool:
        return self.count > 0 and not self.apart


def compare(
    plan: RunPlan,
    records: Mapping[str, ArmRecord],
    by_arm: Mapping[str, Sequence[Observation]],
    limits: Thresholds,
) -> list[Comparison]:
    """One comparison of all replicas that answered, and one of those whose tokens are not known; none where
    the arms are no replicas."""
    if not plan.replicated:
        return []
    answered = {arm.name: _cold_answers(by_arm.get(arm.name, ())) for arm in plan.arms}
    cold = {name: {ids: group for ids, group in own.items() if ids} for name, own in answered.items()}
    names = [name for name, own in cold.items() if own]
    found = _compare_known(plan, records, cold, names, limits)
    unknown = [name for name, own in answered.items() if own and name not in names]
    # A router sends each prompt to one replica: its replicas are not held against each other at all.
    if unknown and len(names) + len(unknown) > 1 and plan.target.replicas == 1:
        why = f"{SALTED}: nothing holds {' and '.join(unknown)} against the others"
        found.append(Comparison(PROBE, NAME, ((names or unknown)[0], unknown[-1]), INCONCLUSIVE, why))
    return found


def _compare_known(
    plan: RunPlan,
    records: Mapping[str, ArmRecord],
    cold: Mapping[str, Mapping[Ids, Group]],
    names: Sequence[str],
    limits: Thresholds,
) -> list[Comparison]:
    models = {name: str(records[name].facts.get("model")) for name in names if name in records}
    if len(names) < 2:
        return []
    ends = (names[0], names[-1])
    if len(set(models.values())) > 1:
        said = "; ".join(f"{name} serves {model}" for name, model in models.items())
        return [Comparison(PROBE, NAME, ends, INCONCLUSIVE, f"they are no replicas of each other: {said}")]
    pairs = {(a, b): _pair(cold[a], cold[b], limits, plan.seed) for a, b in combinations(names, 2)}
    if not any(pair.count for pair in pairs.values()):
        why = "no two replicas were sent the same tokens, so their cold answers are not compared"
        routed = plan.target.replicas > 1
        return [Comparison(PROBE, NAME, ends, NOT_APPLICABLE if routed else INCONCLUSIVE, why)]
    state, reason = _decide(names, pairs)
    headings = ("JSD", "allowed")
    return [Comparison(PROBE, NAME, ends, state, reason, tuple(_rows(pairs)), headings=headings)]


def _cold_answers(observations: Sequence[Observation]) -> dict[Ids, Group]:
    """By the ids that were sent; all whose ids are not known are one."""
    found = {}
    for group in groups_of(observations):
        if group.last and not_cold(group.cold) is None:
            found[tuple(group.cold.input_ids)] = group
    return found


def _pair(first: Mapping[Ids, Group], second: Mapping[Ids, Group], limits: Thresholds, seed: int) -> Pair:
    both = [(first[ids], second[ids]) for ids in first if ids in second]
    flips = {one.prompt for one, other in both if _flipped(one.cold.answer, other.cold.answer, limits)}
    sizes: dict[str, list[float]] = {}
    for one, other in both:
        if one.cold.answer.top and other.cold.answer.top:
            sizes.setdefault(one.prompt, []).append(_jsd(one.cold.answer, other.cold.answer))
    floors = [
        _jsd(group.cold.answer, group.cold2.answer)
        for pair in both
        for group in pair
        if group.cold2 is not None and group.cold.answer.top and group.cold2.answer.top
    ]
    values = np.array([np.mean(one) for one in sizes.values()])
    allowed = margin(float(np.mean(floors)) if floors else 0.0, limits.kappa, limits.least_margin)
    # One-sided: a mean of the values' negatives has minus the lower limit as its upper one.
    lower = -upper_limit(-values, 1 - limits.alpha, seed) if values.size else 0.0
    prompts = len({one.prompt for one, _ in both})
    jsd = float(values.mean()) if values.size else 0.0
    return Pair(len(both), prompts, frozenset(flips), jsd, allowed, moved=not lower <= allowed)


def _flipped(one: Answer, other: Answer, limits: Thresholds) -> bool:
    for told, held in ((one, other), (other, one)):
        agreement = compare_first_token(told, held, limits.near_tie)
        if agreement.corrupt and (agreement.kind == "broken" or top_probability(told) >= limits.sure):
            return True
    return False


def _jsd(one: Answer, other: Answer) -> float:
    p, q = (TopK.of(*zip(*answer.top[0], strict=True)) for answer in (one, other))
    found = divergence(p, q)
    # Answers that share no id bound nothing from below, and could hardly be farther apart.
    return found.jsd_lower if found.shared else found.jsd_upper


def _decide(names: Sequence[str], pairs: Mapping[tuple[str, str], Pair]) -> tuple[str, str]:
    def between(a: str, b: str) -> Pair:
        return pairs.get((a, b)) or pairs[b, a]

    apart = {both: pair for both, pair in pairs.items() if pair.apart}
    unknown = [both for both, pair in pairs.items() if not pair.count]
    if unknown and not apart:
        return INCONCLUSIVE, f"{' and '.join(unknown[0])} were not sent the same tokens, and are not compared"
    if not apart:
        count = min(pair.count for pair in pairs.values())
        most = max(pair.jsd for pair in pairs.values())
        said = f"{len(names)} replicas give the same first tokens to {count} cold prompts"
        return PASS, f"{said}; their mean JSD is at most {most:.2g} nat"
    groups = []
    for start in names:
        group = [start]
        for name in names:
            if name != start and all(between(name, one).alike for one in group):
                group.append(name)
        groups.append(group)
    most_alike = max(groups, key=len)
    if 2 * len(most_alike) <= len(names):
        (a, b), pair = next(iter(apart.items()))
        return INCONCLUSIVE, f"{_said(a, b, pair)}, and no majority says which is wrong"
    odd = [name for name in names if name not in most_alike]
    agreed = {name: frozenset.intersection(*(between(name, one).flips for one in most_alike)) for name in odd}
    worst = max(odd, key=lambda name: len(agreed[name]))
    state = FAIL if len(agreed[worst]) >= LEAST_FLIPS else INCONCLUSIVE
    said = _said(worst, most_alike[0], between(worst, most_alike[0]))
    others = f"; also {', '.join(name for name in odd if name != worst)}" if len(odd) > 1 else ""
    return state, f"{worst} is the odd one out of {len(names)}: {said}{others}"


def _said(one: str, other: str, pair: Pair) -> str:
    if pair.flips:
        share = f"{len(pair.flips)} of {pair.prompts} prompts ({min(pair.flips)})"
        return f"{one} and {other} differ in the cold first token of {share}"
    return (
        f"{one} and {other} differ by {pair.jsd:.2g} nat of JSD in cold answers, allowed {pair.allowed:.2g}"
    )


def _rows(pairs: Mapping[tuple[str, str], Pair]) -> Iterator[Compared]:
    nan = float("nan")
    for (a, b), pair in pairs.items():
        if pair.count:
            yield Compared(f"{a} and {b}", "nat", pair.jsd, pair.allowed, nan, nan, nan, pair.count)
