"""From the pattern of corrupt and clean cells of an arm to what would explain it, likeliest first.

Each explanation says how likely each condition is to be corrupt under it; they are ranked by the sum of the
log-likelihoods of what was found. None is a finding: what it would explain, what speaks against it, and the
extra cell that would tell it from its neighbour stand beside it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fidelity.diagnosis.conditions import QUOTED, SAID, Condition, Outcome, conditions, is_misquoted
from fidelity.diagnosis.explanations import LIKELY, OPEN, SELDOM, Explanation, explanations
from fidelity.diagnosis.extra import next_cell
from fidelity.diagnosis.order import Order
from fidelity.verdicts import FAIL, ArmVerdict, Hypothesis

MOST = 4
"""Hypotheses of an arm."""

TIE = 0.7
"""nats: closer ones share a rank; the better explains the cells less than twice as well."""

FAR = 8.0
"""nats behind the first one, from which an explanation is not worth a line."""

LATER = 0.02
"""p below which corrupt hits count as later than clean ones."""

MOVED = 0.5
"""What a condition counts whose logprobs moved and whose answers did not."""

SIZES = 2
"""Cells that all sizes of the batch probe count for, being much the same condition; and all clean hits, alone
or in batches, where they say one thing, that the model did not need what was stored."""

LISTED = 4
"""Cells that one line names."""


def diagnose(arm: ArmVerdict, facts: Mapping[str, Any], order: Order | None = None) -> tuple[Hypothesis, ...]:
    """What would explain the arm's cells; nothing where none is corrupt or moved. `facts` are those of its
    server, `order` that of its corrupt hits."""
    found = [*conditions(arm.cells), *_of_arm(arm, facts, order)]
    if not any(one.outcome != "clean" and one.path not in SAID for one in found):
        return ()
    possible = explanations(found, str(facts.get("strategy", "")))
    weighed = [_Weighed(one, _weight(one, found)) for one in possible if _explains(one, found)]
    weighed.sort(key=lambda one: -one.weight)
    near = [one for one in weighed if weighed[0].weight - one.weight < FAR]
    return tuple(_told(_one_size(near)[:MOST], found))


@dataclass(frozen=True)
class _Weighed:
    explanation: Explanation
    weight: float


def _explains(explanation: Explanation, found: Sequence[Condition]) -> bool:
    """Is there something corrupt that it would make corrupt?"""
    return any(
        at.outcome != "clean" and at.path not in ("region", "known") and explanation.expect(at) >= LIKELY
        for at in found
    )


def _one_size(weighed: Sequence[_Weighed]) -> list[_Weighed]:
    """Of the kernels for several tokens, the best alone: their sizes are no rivals."""
    sizes = [one for one in weighed if (one.explanation.region or 0) > 1]
    return [one for one in weighed if one not in sizes[1:]]


def _of_arm(arm: ArmVerdict, facts: Mapping[str, Any], order: Order | None) -> Iterator[Condition]:
    if arm.state == FAIL and not any(cell.state == FAIL for cell in arm.cells):
        yield Condition("the cold answers of the screening", "cold", "corrupt", arm.reason)
        yield Condition(QUOTED, "quoted", _if(is_misquoted(arm.reason)), arm.reason)
    if order is not None:
        said = f"in {order.later * 100:.0f} % of {order.pairs} pairs of one condition, p {order.p:.1g}"
        outcome = _if(order.p < LATER)
        yield Condition("corrupt hits later than clean ones", "order", outcome, said)
    if arm.cold_known:
        said = f"{arm.cold_right} of {arm.cold_known} right"
        outcome = _if(arm.cold_right * 2 < arm.cold_known)
        yield Condition("known answers wrong even cold", "known", outcome, said)
    region = facts.get("fault_region")
    if isinstance(region, int):
        said = f"it reaches M = {region}" if region else "it reaches no forward"
        yield Condition("the fault region of the server's shapes", "region", "corrupt", said, rows=region)


def _if(corrupt: bool) -> Outcome:
    return "corrupt" if corrupt else "clean"


def _weight(explanation: Explanation, found: Sequence[Condition]) -> float:
    """Log-likelihood in nats, prior included."""
    total = explanation.prior
    sizes = sum(at.path == "batch" for at in found)
    shares = [
        (MOVED if at.outcome == "moved" else 1.0) * (min(1.0, SIZES / sizes) if at.path == "batch" else 1.0)
        for at in found
    ]
    spared = [explanation.stored and at.outcome == "clean" and at.is_hit for at in found]
    clean = sum(share for share, one in zip(shares, spared, strict=True) if one)
    for at, share, one in zip(found, shares, spared, strict=True):
        p = _expected(explanation, at)
        weight = share * min(1.0, SIZES / clean) if one else share
        total += weight * math.log(1 - p if at.outcome == "clean" else p)
    return total


def _expected(explanation: Explanation, at: Condition) -> float:
    """The region says something of kernels only."""
    return OPEN if at.path == "region" and explanation.region is None else explanation.expect(at)


def _told(kept: Sequence[_Weighed], found: Sequence[Condition]) -> Iterator[Hypothesis]:
    rank = 1
    for place, one in enumerate(kept):
        if place and kept[place - 1].weight - one.weight > TIE:
            rank = place + 1
        rival = kept[0] if place else kept[1] if len(kept) > 1 else None
        yield Hypothesis(
            name=one.explanation.name,
            rank=rank,
            support=tuple(_support(one.explanation, found)),
            against=tuple(_against(one.explanation, found)),
            next=next_cell(one.explanation, rival.explanation if rival else None, found),
        )


def _support(explanation: Explanation, found: Sequence[Condition]) -> Iterator[str]:
    expected = [(at, _expected(explanation, at)) for at in found]
    for outcome in ("corrupt", "moved", "clean"):
        agree = [
            at.name
            for at, p in expected
            if at.outcome == outcome
            and at.path not in SAID
            and (p <= SELDOM if outcome == "clean" else p >= LIKELY)
        ]
        if agree:
            yield f"would explain what is {outcome}: {_listed(agree)}"
    for at, p in expected:
        if at.path in SAID and at.outcome == "corrupt" and p >= LIKELY:
            yield f"fits {at.name}: {at.said}"


def _against(explanation: Explanation, found: Sequence[Condition]) -> Iterator[str]:
    clean = []
    for at in found:
        p = _expected(explanation, at)
        if at.outcome == "clean" and p >= LIKELY:
            if at.path in SAID:
                yield f"no {at.name} speaks against it: {at.said}"
            else:
                clean.append(at.name)
        elif at.outcome != "clean" and p <= SELDOM:
            yield f"{at.name} speaks against it: {at.said}"
    if clean:
        yield f"clean, which speaks against it: {_listed(clean)}"


def _listed(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - LISTED} more" if len(different) > LISTED else ""
    return ", ".join(different[:LISTED]) + more
