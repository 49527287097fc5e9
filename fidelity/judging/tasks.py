"""The verdict of the tasks probe: does a cache hit answer fewer questions right than the cold send did?"""

import math
from collections import Counter
from collections.abc import Sequence

from fidelity.evidence import Group, groups_of, missed
from fidelity.judging.changes import hit_rules
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.cells import Cell
from fidelity.prompts.questions import graded
from fidelity.stats.rates import clopper_pearson, mcnemar, newcombe
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Example,
    Figure,
    Reading,
)

EXAMPLES = 3
SHOWN_CHARACTERS = 80
NOTHING = "no question was asked"


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """One cell for each question file."""
    files = dict.fromkeys(obs.cell for obs in observations)
    if not files:
        return [CellVerdict(arm.name, "tasks", "questions", "suspect", NOT_EXERCISED, NOTHING)]
    return [
        _judge_file(arm.name, file, record, [obs for obs in observations if obs.cell == file], limits)
        for file in files
    ]


def _judge_file(
    arm: str, file: str, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> CellVerdict:
    groups = [group for group in groups_of(observations) if group.last]
    pairs = [(group, hit) for group in groups for hit in group.hits[-1:]]
    why = [_missed(group, hit, record) for group, hit in pairs]
    counted = [pair for pair, reason in zip(pairs, why, strict=True) if reason is None]
    broken = [(one, rules) for one in counted if (rules := _rules(*one, limits))]
    cold = [_right(group.cold) for group, _ in counted]
    hits = [_right(hit) for _, hit in counted]
    lost = sum(a and not b for a, b in zip(cold, hits, strict=True))
    gained = sum(b and not a for a, b in zip(cold, hits, strict=True))
    suspects = sum(hit.kind == "suspect" for _, hit in counted)
    p = mcnemar(lost, gained)
    n = len(counted)
    served = sum(bool(hit.answer.cached_tokens) for _, hit in counted)
    said = f"hits {served} of {len(pairs)}, {suspects} with a suspect tail"
    if _avoided(record):
        said += " that the guard avoids"
    if n:
        shares = f"accuracy cold {sum(cold) / n:.3g}, hit {sum(hits) / n:.3g}"
        said = f"{shares} ({lost} lost, {gained} gained); {said}"
    state, reason = _state(n, suspects, broken, p, said, why, limits)
    bounds = clopper_pearson(lost, n, limits.confidence)
    wrong = [(group, hit) for (group, hit), a, b in zip(counted, cold, hits, strict=True) if a and not b]
    return CellVerdict(
        arm=arm,
        probe="tasks",
        name=file,
        kind="suspect",
        state=state,
        reason=reason,
        why="graded questions, cold and as a cache hit",
        prompts=len(groups),
        exercised=n,
        corrupt=lost,
        sends=len(pairs),
        corrupt_sends=lost,
        rate_lower=bounds.lower,
        rate_upper=bounds.upper,
        tails=dict(Counter(str(hit.tail_seen) for _, hit in counted)),
        rules=dict(Counter(rules[0].split(":")[0] for _, rules in broken)),
        faces=dict(sum((Counter(hit.answer.faces) for _, hit in pairs), Counter())),
        values=sum(hit.answer.values for _, hit in pairs),
        missed=dict(Counter(reason for reason in why if reason is not None)),
        figures=_figures(p, lost, gained, n, limits),
        examples=tuple(_example(group, hit) for group, hit in wrong[:EXAMPLES]),
        readings=_readings(sum(cold), sum(hits), n, (served, len(pairs), suspects), (lost, gained)),
    )


def least_loss(alpha: float) -> int:
    """Fewest questions lost, with none gained, that an exact McNemar test calls significant: the least k with
    2^-k < alpha."""
    return math.floor(-math.log2(alpha)) + 1


def _state(
    n: int,
    suspects: int,
    broken: Sequence[tuple[tuple[Group, Observation], tuple[str, ...]]],
    p: float,
    said: str,
    why: Sequence[str | None],
    limits: Thresholds,
) -> tuple[str, str]:
    if broken:
        return FAIL, f"{len(broken)} of {n} hits break a rule: {broken[0][1][0]}; {said}"
    if n and p < limits.alpha:
        return FAIL, f"{said} (p = {p:.2g})"
    if not n:
        first = next((reason for reason in why if reason is not None), NOTHING)
        return NOT_EXERCISED, f"{said}: {first}"
    if not suspects:
        return (
            NOT_EXERCISED,
            f"{said}: the path was not exercised, so an accuracy as when cold proves nothing",
        )
    if p < 1 - limits.confidence:
        return INCONCLUSIVE, f"{said} (p = {p:.2g}, significant below {limits.alpha:g})"
    needed = least_loss(limits.alpha)
    if suspects < needed:
        return INCONCLUSIVE, f"{said}: a loss at suspect tails shows from {needed} of them up"
    return PASS, f"{said}; a loss of less than {needed} of {n} answers would not have been seen"


def _missed(group: Group, hit: Observation, record: ArmRecord) -> str | None:
    """Why a hit proves nothing. What counts is the tail that the server left, as it was predicted; where a
    guard leaves no suspect tail, that may be the whole prompt."""
    tail = hit.length - (hit.expected_cached or 0)
    if not hit.expected_cached and not (hit.kind == "suspect" and _avoided(record)):
        return f"a prompt of {hit.length} tokens is not served from the cache by a second send"
    cell = Cell(hit.cell, hit.kind, hit.length, tail, "")
    return missed(group, hit, cell, structural=record.min_tail > tail)


def _avoided(record: ArmRecord) -> bool:
    """Does the arm's guard leave no tail as short as a suspect one?"""
    return any(cell.kind == "suspect" and cell.tail < record.min_tail for cell in record.cells)


def _rules(group: Group, hit: Observation, limits: Thresholds) -> tuple[str, ...]:
    return hit_rules(group.cold.answer, hit.answer, limits.near_tie)


def _right(obs: Observation) -> bool:
    return graded(obs.answer.text or "", obs.expected_text)


def _figures(p: float, lost: int, gained: int, n: int, limits: Thresholds) -> tuple[Figure, ...]:
    if not n:
        return ()
    name = f"exact McNemar p, {lost} right only when cold, {gained} only as a hit"
    return (Figure(name, p, ">=", limits.alpha, "thresholds.alpha", p >= limits.alpha),)


def _readings(
    cold: int, hits: int, n: int, sends: tuple[int, int, int], discordant: tuple[int, int]
) -> tuple[Reading, ...]:
    names = ("hits", "attempts", "hits at a suspect tail")
    counts = tuple(Reading(name, count) for name, count in zip(names, sends, strict=True))
    if not n:
        return counts
    between = newcombe(hits, n, cold, n)
    return (
        Reading("accuracy, cold", cold / n),
        Reading("accuracy, hit", hits / n),
        Reading("accuracy, hit minus cold", (hits - cold) / n, low=between.lower, high=between.upper),
        *counts,
        Reading("right only when cold", discordant[0]),
        Reading("right only as a hit", discordant[1]),
    )


def _example(group: Group, hit: Observation) -> Example:
    return Example(
        prompt=group.prompt,
        expected=hit.expected_text,
        cold=(group.cold.answer.text or "")[-SHOWN_CHARACTERS:],
        other=(hit.answer.text or hit.answer.error or "")[-SHOWN_CHARACTERS:],
        cached_tokens=hit.answer.cached_tokens,
        tail=hit.tail_seen,
        why="right when cold, wrong as a hit",
        order=hit.order,
    )
