"""The verdict of the impact probe: for each request pattern, answers that only the cache hit changes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fidelity.evidence import Group, groups_of, missed
from fidelity.judging import changes
from fidelity.judging.changes import CHANGED, SAME, difference
from fidelity.judging.few import rate_limits
from fidelity.judging.impact_readings import Trio, readings
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.cells import Cell
from fidelity.probes.impact import skip_key, suspect, usable
from fidelity.probes.patterns import PATTERNS, Pattern
from fidelity.stats.rates import mcnemar
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Example,
    Figure,
)

EXAMPLES = 3
SHOWN_CHARACTERS = 80


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """One cell for each pattern."""
    cell = suspect(record.cells)
    if cell is None:
        reason = "the plan has no suspect tail"
        return [CellVerdict(arm.name, "impact", "impact", "suspect", NOT_EXERCISED, reason)]
    found = []
    for pattern in PATTERNS:
        own = [obs for obs in observations if obs.cell == pattern.name]
        skipped = record.skipped.get(skip_key(pattern))
        if skipped is not None:
            found.append(_not_applicable(arm.name, pattern, skipped))
        else:
            found.append(_judge_pattern(arm.name, pattern, cell, record, own, limits))
    return found


def _judge_pattern(
    arm: str,
    pattern: Pattern,
    cell: Cell,
    record: ArmRecord,
    observations: Sequence[Observation],
    limits: Thresholds,
) -> CellVerdict:
    groups = [group for group in groups_of(observations) if group.last]
    kept = [group for group in groups if usable(pattern, group.cold, limits.sure)]
    if pattern.chat and groups and not kept:
        return _not_applicable(arm, pattern, _no_calls(groups))
    structural = record.min_tail > cell.tail
    trios = [
        _trio(group, hit, cell, limits, structural=structural, letters=pattern.letters)
        for group in kept
        for hit in group.hits[-1:]
    ]
    counted = [one for one in trios if one.why_missed is None]
    reasons = Counter(one.why_missed for one in trios if one.why_missed is not None)
    broken = [one for one in counted if one.rules]
    harmed = sum(one.harmed and one.floor != CHANGED for one in counted)
    excused = sum(one.floor == CHANGED and not one.harmed for one in counted)
    p = mcnemar(harmed, excused)
    lower, upper, figures = rate_limits(harmed, len(counted), limits)
    state, reason = _state(len(kept), counted, broken, harmed, excused, p, upper, reasons, limits)
    if counted:
        name = f"exact McNemar p, {harmed} changed by the hit alone, {excused} by the second cold send alone"
        figures = (*figures, Figure(name, p, ">=", limits.alpha, "thresholds.alpha", p >= limits.alpha))
    unsure = len(groups) - len(kept)
    changed = [one for one in counted if one.rules or one.harmed]
    return CellVerdict(
        arm=arm,
        probe="impact",
        name=pattern.name,
        kind="suspect",
        state=state,
        reason=reason,
        length=cell.length,
        tail=cell.tail,
        why=pattern.about,
        prompts=len(kept),
        exercised=len(counted),
        corrupt=len(changed),
        sends=len(trios),
        corrupt_sends=len(changed),
        rate_lower=lower,
        rate_upper=upper,
        tails=_count(one.hit.tail_seen for one in trios),
        cached=_count(one.hit.answer.cached_tokens for one in trios),
        rules=dict(Counter(one.rules[0].split(":")[0] for one in broken)),
        faces=dict(sum((Counter(one.hit.answer.faces) for one in trios), Counter())),
        values=sum(one.hit.answer.values for one in trios),
        missed=dict(reasons) | ({"the model is unsure of its cold answer": unsure} if unsure else {}),
        figures=figures,
        examples=tuple(_example(one) for one in changed[:EXAMPLES]),
        readings=tuple(readings(pattern, counted)),
    )


def _state(
    planned: int,
    counted: Sequence[Trio],
    broken: Sequence[Trio],
    harmed: int,
    excused: int,
    p: float,
    upper: float,
    missed_for: Counter[str],
    limits: Thresholds,
) -> tuple[str, str]:
    n = len(counted)
    if broken:
        return FAIL, f"{len(broken)} of {n} hits break a rule: {broken[0].rules[0]}"
    said = f"{harmed} of {n} answers changed by the hit alone, {excused} by a second cold send alone"
    if p < limits.alpha:
        return FAIL, f"{said} (p = {p:.2g})"
    if not n:
        return NOT_EXERCISED, next(iter(missed_for), "no prompt that the model is sure of was sent")
    if harmed > excused:
        return INCONCLUSIVE, f"{said} (p = {p:.2g}, significant below {limits.alpha:g})"
    if n < planned:
        return INCONCLUSIVE, f"{planned - n} of {planned} hits prove nothing: {next(iter(missed_for), '')}"
    bound = f"{said}: at most {upper * 100:.1f}% at {limits.confidence * 100:g}%"
    return (PASS if upper <= limits.coarse_rate else INCONCLUSIVE), bound


def _trio(
    group: Group, hit: Observation, cell: Cell, limits: Thresholds, *, structural: bool, letters: bool
) -> Trio:
    cold = group.cold.answer
    again = cold if group.cold2 is None else group.cold2.answer
    why = missed(group, hit, replace(cell, length=group.cold.length), structural=structural)
    if why is None and group.cold2 is None:
        why = "there is no second cold answer"
    rules = changes.hit_rules(cold, hit.answer, limits.near_tie)
    if why is None and not rules and group.cold_rules(limits.near_tie):
        why = f"the cold answer is itself broken: {group.cold_rules(limits.near_tie)[0]}"
    floor, change = (difference(cold, answer, limits.near_tie) for answer in (again, hit.answer))
    if letters:
        floor, change = (
            _worse(kind, _preference(cold, answer, limits.near_tie))
            for kind, answer in ((floor, again), (change, hit.answer))
        )
    expected = group.cold.expected_text
    return Trio(group.prompt, expected, cold, again, hit, rules, floor, change, why)


def _preference(cold: Answer, other: Answer, near_tie: float) -> str:
    """Is another letter the likeliest, where the cold margin was more than a near-tie?"""
    first, second = changes.ranking(cold), changes.ranking(other)
    if not first or not second or first[0][0] == second[0][0]:
        return SAME
    return CHANGED if first[0][1] - dict(first)[second[0][0]] > near_tie else SAME


def _worse(one: str, other: str) -> str:
    return other if one == SAME else one


def _no_calls(groups: Sequence[Group]) -> str:
    odd = next((group.cold for group in groups if group.cold.answer.prompt_tokens != group.cold.length), None)
    if odd is not None:
        read = odd.answer.prompt_tokens
        return f"the server reads {read} tokens in a chat that /tokenize takes for {odd.length}"
    return f"none of {len(groups)} cold answers calls the tool"


def _not_applicable(arm: str, pattern: Pattern, reason: str) -> CellVerdict:
    return CellVerdict(arm, "impact", pattern.name, "suspect", NOT_APPLICABLE, reason, why=pattern.about)


def _example(one: Trio) -> Example:
    return Example(
        prompt=one.prompt,
        expected=one.expected,
        cold=_shown(one.cold),
        other=_shown(one.hit.answer),
        cached_tokens=one.hit.answer.cached_tokens,
        tail=one.hit.tail_seen,
        why="; ".join(one.rules) or "the answer changed",
        order=one.hit.order,
    )


def _shown(answer: Answer) -> str:
    calls = [f"{call['name']}({call['arguments']})" for call in answer.tool_calls]
    return ("; ".join(calls) or answer.text or answer.error or "")[:SHOWN_CHARACTERS]


def _count(values: Iterator[int | None]) -> dict[str, int]:
    return dict(Counter(str(value) for value in values))
