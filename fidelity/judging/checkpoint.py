"""The verdict of the checkpoint probe: one cell for each number of tokens past the stored state."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from fidelity.evidence import Group, groups_of
from fidelity.judging.few import count_faces, decide, rate_limits
from fidelity.judging.sweep import CORRUPT, GONE, LONE, MISSED, Spot, find_spot, is_lone_move, spot_examples
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.cells import Cell
from fidelity.probes.checkpoint import PROBE, cells_from
from fidelity.single_send import token_move
from fidelity.verdicts import INCONCLUSIVE, PASS, CellVerdict, Reading


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """In the order of their tails. One send at each (prompt, tail) counts as corrupt only where no rounding
    explains it, as in the sweep."""
    groups: dict[str, list[Group]] = defaultdict(list)
    for group in groups_of(observations):
        groups[group.cold.cell].append(group)
    unsure_alone = plan.target.shared
    found = []
    for cell in cells_from(record.facts.get("grid") or 1):
        spots = [
            spot
            for group in groups[cell.name]
            if (spot := find_spot(cell.position, cell.tail, group, record, limits)) is not None
        ]
        found.append(_judge_cell(arm.name, cell, spots, plan, limits, unsure_alone=unsure_alone))
    return found


def _judge_cell(
    arm: str, cell: Cell, spots: Sequence[Spot], plan: RunPlan, limits: Thresholds, *, unsure_alone: bool
) -> CellVerdict:
    corrupt = [spot for spot in spots if spot.mark == CORRUPT]
    lost = Counter(spot.why for spot in spots if spot.mark == MISSED)
    exercised = len(spots) - lost.total()
    why = [spot.why for spot in corrupt] or [reason for reason, _ in lost.most_common()]
    planned = plan.checkpoint.prompts
    state, reason = decide("hits", len(corrupt), exercised, planned, why, limits)
    if is_lone_move(corrupt, limits):
        state, reason = INCONCLUSIVE, f"{reason}{LONE}"
    hits = [spot.group.hits[0] for spot in spots if spot.group and spot.group.hits]
    silent = sum(hit.alone is None for hit in hits)
    if state == PASS and silent and unsure_alone:
        state = INCONCLUSIVE
        reason = f"nothing shows that {silent} of {len(hits)} hits were alone on the server (--assume-idle)"
    gone = sum(spot.mark == GONE for spot in spots)
    if state == PASS and gone:
        reason = f"the guard leaves no such tail in {gone} of {len(spots)} hits; {reason}"
    lower, upper, figures = rate_limits(len(corrupt), exercised, limits)
    return CellVerdict(
        arm=arm,
        probe=PROBE,
        name=cell.name,
        kind=cell.kind,
        state=state,
        reason=reason,
        length=cell.length,
        tail=cell.tail,
        why=cell.why,
        prompts=max(planned, len(spots)),
        exercised=exercised,
        corrupt=len(corrupt),
        sends=len(hits),
        corrupt_sends=len(corrupt),
        rate_lower=lower,
        rate_upper=upper,
        tails=_counts(hit.tail_seen for hit in hits),
        cached=_counts(hit.answer.cached_tokens for hit in hits),
        rules=dict(Counter(spot.why.split(":")[0].split(" (")[0] for spot in corrupt)),
        faces=count_faces(hits),
        values=sum(hit.answer.values for hit in hits),
        missed=dict(lost),
        figures=figures,
        examples=tuple(spot_examples(corrupt)),
        readings=tuple(_readings(spots)),
    )


def _readings(spots: Sequence[Spot]) -> Iterator[Reading]:
    moves = [
        token_move(spot.group.cold.answer, spot.group.hits[0].answer)
        for spot in spots
        if spot.group and spot.group.hits and spot.mark != MISSED
    ]
    known = [move for move in moves if move == move]
    if known:
        yield Reading("|delta logprob| of the cold token, median", float(np.median(known)), "nat")
        yield Reading("|delta logprob| of the cold token, largest", max(known), "nat")


def _counts(values: Iterator[int | None]) -> dict[str, int]:
    known = sorted(value for value in values if value is not None)
    return {str(value): count for value, count in Counter(known).items()}
