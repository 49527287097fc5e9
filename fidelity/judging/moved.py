"""Rows whose first token stayed while its logprobs moved: laid over a pass, never the reverse.

Suspects are held against path controls of the same prompts, by the mean JSD and by the mean |delta logprob|
over the cold answer's ids. With few prompts the run's `alpha` is out of reach: a shift fails where the median
excess is beyond the margin and its sign-flip p at most 1 - confidence; what is only not shown to stay within
the margin is inconclusive.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fidelity.judging.rows import Judged
from fidelity.plan import Thresholds
from fidelity.stats.cells import elevated, shift_evidence
from fidelity.stats.topk import FloatArray
from fidelity.verdicts import FAIL, INCONCLUSIVE, Figure

JSD, MOVE = "mean JSD", "mean |delta logprob|"
NAMES = {JSD: ("jsd", "least_margin", "elevated"), MOVE: ("moved", "least_move", "elevated_move")}
"""Of each size of a shift: the field of a judged row, and the thresholds for it."""


@dataclass(frozen=True)
class Finding:
    """A figure, and the state it leads to with its reason; None where it holds."""

    figure: Figure
    state: str | None = None
    reason: str = ""


def against_controls(
    rows: Sequence[Judged], controls: Sequence[Judged], named: str, limits: Thresholds, seed: int
) -> Iterator[Finding]:
    """Rows against controls of the same prompts, by both sizes; nothing without a prompt in both."""
    for size, (field, least, _) in NAMES.items():
        ours, theirs = _by_prompt(rows, field), _by_prompt(controls, field)
        prompts = sorted(ours.keys() & theirs.keys())
        if not prompts:
            continue
        suspect = np.array([ours[prompt] for prompt in prompts])
        control = np.array([theirs[prompt] for prompt in prompts])
        found = shift_evidence(
            suspect, control, limits.kappa, getattr(limits, least), limits.confidence, seed
        )
        figure = Figure(
            f"{size} above that of {named} ({found.n} prompts), nats: upper limit",
            found.upper,
            "<",
            found.margin,
            f"max(kappa {limits.kappa:g} x control floor, {least} {getattr(limits, least):g}) of thresholds",
            found.bounded,
        )
        if found.bounded:
            yield Finding(figure)
            continue
        excess = float(np.median(suspect - control))
        said = f"{size} {excess:.2g} nat (median) above that of {named}, margin {found.margin:.2g}"
        if excess > found.margin and found.p <= 1 - limits.confidence:
            yield Finding(figure, FAIL, f"the logprobs moved: {said}, p {found.p:.1g}")
        else:
            reason = f"the {size} is not shown to stay within {found.margin:.2g} nat of that of {named}"
            yield Finding(figure, INCONCLUSIVE, f"{reason} (upper limit {found.upper:.2g})")


def against_cold(
    rows: Sequence[Judged], floor: Mapping[str, FloatArray], limits: Thresholds
) -> Iterator[Finding]:
    """Rows that nothing but cold sends can be held against: far from cold, they call for an explanation."""
    for size, (field, _, limit) in NAMES.items():
        values = np.array(list(_by_prompt(rows, field).values()))
        if not values.size:
            continue
        median, allowed = float(np.median(values)), getattr(limits, limit)
        holds = not elevated(values, floor[size], allowed)
        what = size.removeprefix("mean ")
        figure = Figure(f"median {what} from cold, nats", median, "<=", allowed, f"thresholds.{limit}", holds)
        reason = (
            f"elevated rows: {median:.2g} nat (median {what}) from cold, above {allowed:g} and above the "
            "cold floor; nothing tells whether that is a fault or another kernel's rounding"
        )
        yield Finding(figure) if holds else Finding(figure, INCONCLUSIVE, reason)


def _by_prompt(rows: Sequence[Judged], field: str) -> dict[str, float]:
    """The mean over each prompt's rows that took the path. A corrupt row is no control of another."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.last and row.missed is None and not row.rules:
            values.setdefault(row.sent.prompt, []).append(getattr(row, field))
    return {prompt: float(np.mean(found)) for prompt, found in values.items()}
