"""Hits of a server without logprobs: all that can be seen is a right answer that a hit makes wrong.

It can turn a verdict into a fail and never into a pass: equal texts bound no distribution.
"""

from collections.abc import Sequence
from dataclasses import replace

from fidelity.evidence import Group
from fidelity.judging.changes import right
from fidelity.plan import Thresholds
from fidelity.stats.rates import clopper_pearson
from fidelity.verdicts import FAIL, CellVerdict, Figure


def apply(verdict: CellVerdict, groups: Sequence[Group], limits: Thresholds) -> CellVerdict:
    """Fails where, of the prompts whose two cold answers both begin with the known answer, so many hits do
    not that the lower limit of their rate is above `max_rate`. A cell with logprobs is left as it is."""
    known = [group for group in groups if group.last and _is_known(group)]
    if not known:
        return verdict
    wrong = [group for group in known if any(_is_wrong(group, hit.answer.text) for hit in group.hits)]
    lower = clopper_pearson(len(wrong), len(known), limits.confidence).lower
    holds = lower <= limits.max_rate
    figure = Figure(
        f"right cold and cold again, wrong as a hit, {len(wrong)} of {len(known)}: lower limit",
        lower,
        "<=",
        limits.max_rate,
        f"thresholds.max_rate; exact one-sided limit at {limits.confidence * 100:g}%",
        holds,
    )
    verdict = replace(verdict, figures=(*verdict.figures, figure))
    if holds:
        return verdict
    reason = f"{len(wrong)} of {len(known)} answers are right cold and cold again, and wrong as a re-send"
    return replace(verdict, state=FAIL, reason=reason, corrupt=len(wrong))


def _is_known(group: Group) -> bool:
    answers = [one.answer for one in (group.cold, group.cold2, *group.hits) if one is not None]
    silent = not any(answer.logprobs or answer.failed for answer in answers)
    cold = (group.cold, group.cold2)
    return silent and all(one is not None and right(one.answer, one.expected_text) for one in cold)


def _is_wrong(group: Group, text: str | None) -> bool:
    """Does it not hold the known answer at all? Said in other words, it may be right."""
    return group.cold.expected_text.strip() not in (text or "")
