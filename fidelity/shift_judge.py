"""What moved without flipping a token: suspect hits against control hits, controls against cold, and
neighbours.

Laid over the rate verdict of each cell: a shift can turn a pass into a fail or an inconclusive, never the
reverse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fidelity.compare import top_probability
from fidelity.comparison import OTHER_TOKENS, Sends
from fidelity.evidence import Group, not_cold
from fidelity.plan import Thresholds
from fidelity.probes.cells import Cell
from fidelity.probes.moved import SHARED
from fidelity.stats.cells import ShiftEvidence, censoring_slack, elevated, prompt_means, shift_evidence
from fidelity.stats.equivalence import holm
from fidelity.stats.rates import clopper_pearson
from fidelity.stats.topk import BoolArray, FloatArray
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS, CellVerdict, Figure

CERTAIN = 0.9
"""Cold top-1 probability from which a right answer is known and not guessed."""

JSD, MOVE = "mean JSD", "mean |delta logprob|"
"""The two sizes of a shift, in nats: JSD weighs by probability, and sees little where an answer is sure; the
mean |delta logprob| over the cold answer's ids sees the unlikely ones move that a sure answer hides."""


@dataclass(frozen=True)
class Measured:
    """One cell's sends against cold, each size mapping a prompt to its mean (nats) over the sends that took
    the path. `floors` is the same of cold against cold; `slack` the median width of the hits' intervals."""

    cell: Cell
    sizes: dict[str, dict[str, float]]
    floors: dict[str, dict[str, float]]
    slack: float


@dataclass(frozen=True)
class Shift:
    """A suspect cell against its control by one size; `adjusted` is the Holm-corrected p over the whole
    run."""

    size: str
    control: str
    evidence: ShiftEvidence
    adjusted: float


def measure(cell: Cell, hits: Sends, floor: Sends) -> Measured:
    """The sizes of a cell's proven hits, and its cold floor, prompt by prompt."""
    proven = _proven(hits)
    return Measured(
        cell=cell,
        sizes=_sizes(hits, proven),
        floors=_sizes(floor, _proven(floor)),
        slack=censoring_slack(hits.found.rows(proven)) if proven.any() else 0.0,
    )


def find_shifts(
    arms: Mapping[str, Sequence[Measured]], limits: Thresholds, seed: int
) -> dict[tuple[str, str], list[Shift]]:
    """Each suspect cell of each arm against the control with the smallest tail at the same position, by each
    size and over the prompts both have; keyed by (arm, cell name). Holm-corrected over all of them."""
    least = {JSD: limits.least_margin, MOVE: limits.least_move}
    found: list[tuple[tuple[str, str], str, str, ShiftEvidence]] = []
    for arm, cells in arms.items():
        for suspect in cells:
            control = _control_of(suspect, cells)
            if suspect.cell.kind != "suspect" or control is None:
                continue
            for size, values in suspect.sizes.items():
                prompts = sorted(set(values) & set(control.sizes[size]))
                evidence = shift_evidence(
                    np.array([values[prompt] for prompt in prompts]),
                    np.array([control.sizes[size][prompt] for prompt in prompts]),
                    kappa=limits.kappa,
                    least=least[size],
                    confidence=limits.confidence,
                    seed=seed,
                )
                found.append(((arm, suspect.cell.name), size, control.cell.name, evidence))
    adjusted = holm(np.array([evidence.p for *_, evidence in found]))
    shifts: dict[tuple[str, str], list[Shift]] = {}
    for (key, size, control_name, evidence), p in zip(found, adjusted, strict=True):
        shifts.setdefault(key, []).append(Shift(size, control_name, evidence, float(p)))
    return shifts


def apply(
    verdict: CellVerdict, measured: Measured, shifts: Sequence[Shift], limits: Thresholds
) -> CellVerdict:
    """The verdict of one hit cell with its shifts, censoring and elevation laid on."""
    if verdict.kind == "suspect":
        verdict = _with_shifts(verdict, shifts, limits)
        if measured.cell.moved:
            verdict = _with_moved_states(verdict)
    elif verdict.kind == "control":
        verdict = _with_elevation(verdict, measured, limits)
    if verdict.state == PASS and not measured.slack <= limits.slack:
        figure = Figure(
            "median width of the JSD interval, nats",
            measured.slack,
            "<=",
            limits.slack,
            "thresholds.slack",
            False,
        )
        reason = (
            f"the top-k answers leave {measured.slack:.2g} nat of the JSD open "
            f"(allowed: {limits.slack:g}): "
            "the server tells too little of each distribution"
        )
        return replace(verdict, state=INCONCLUSIVE, reason=reason, figures=(*verdict.figures, figure))
    return verdict


def neighbour_rule(
    verdict: CellVerdict, groups: Sequence[Group], neighbours: Sequence[Sequence[Group]], limits: Thresholds
) -> CellVerdict:
    """Cold answers wrong at a suspect length and right at all its neighbours: an engine whose cold prefill
    runs the same faulty last step shows nothing else. Fails as corrupt prompts do, by the lower limit of
    their rate; a rate that is itself above the allowed one is no pass. (Its upper limit is not asked for: a
    near-tie can fall either way at one length.) `neighbours` are the groups of other lengths; a right answer
    counts where its model is sure of it, as a guess can change with a prompt's length."""
    right = [{group.prompt: _knows(group) for group in cell if group.last} for cell in neighbours]
    judged = [
        (group, [cell[group.prompt] for cell in right if group.prompt in cell])
        for group in groups
        if group.last and not_cold(group.cold) is None
    ]
    known = [(group, others) for group, others in judged if others and all(others)]
    wrong = sum(not group.begins_right for group, _ in known)
    if not wrong:
        return verdict
    lower = clopper_pearson(wrong, len(known), limits.confidence).lower
    rate = wrong / len(known)
    counted = (
        f"{wrong} of {len(known)} known answers are wrong even cold at {verdict.length} tokens and right at "
    )
    counted += f"{len(neighbours)} other lengths"
    figure = Figure(
        f"cold wrong here and right at {len(neighbours)} other lengths, {wrong} of {len(known)}: rate",
        rate,
        "<=",
        limits.max_rate,
        f"thresholds.max_rate; fails when the exact lower limit ({lower:.2g}) is above it",
        rate <= limits.max_rate,
    )
    verdict = replace(verdict, figures=(*verdict.figures, figure))
    if lower > limits.max_rate:
        before = f"{verdict.reason}; " if verdict.state == FAIL else ""
        return replace(verdict, state=FAIL, reason=f"{before}{counted}: cold and hit share the fault")
    # One alone can be a near-tie, or a guess of a model that knows nothing.
    if verdict.state == PASS and rate > limits.max_rate and wrong > 1:
        return replace(verdict, state=INCONCLUSIVE, reason=counted)
    return verdict


def _knows(group: Group) -> bool:
    return group.begins_right and top_probability(group.cold.answer) >= CERTAIN


def _with_shifts(verdict: CellVerdict, shifts: Sequence[Shift], limits: Thresholds) -> CellVerdict:
    if not shifts:
        if verdict.state != PASS:
            return verdict
        reason = "no control cell at this position to hold the hits against"
        return replace(verdict, state=INCONCLUSIVE, reason=reason)
    figures = [figure for shift in shifts for figure in _figures(shift, limits)]
    verdict = replace(verdict, figures=(*verdict.figures, *figures))
    for shift in shifts:
        found = shift.evidence
        beyond = shift.adjusted < limits.alpha and found.mean_difference > found.margin
        if beyond and verdict.state != FAIL:
            reason = (
                f"the logprobs moved: {shift.size} {found.mean_difference:.2g} nat above that of "
                f"{shift.control} (margin {found.margin:.2g}, p {shift.adjusted:.1g})"
            )
            verdict = replace(verdict, state=FAIL, reason=reason)
    for shift in shifts:
        found = shift.evidence
        if verdict.state == PASS and not found.bounded:
            more = f"; about {found.more_prompts} more prompts would decide" if found.more_prompts else ""
            reason = (
                f"the {shift.size} is not shown to stay within {found.margin:.2g} nat of that of "
                f"{shift.control} (upper limit {found.upper:.2g}){more}"
            )
            verdict = replace(verdict, state=INCONCLUSIVE, reason=reason)
    return verdict


def _with_moved_states(verdict: CellVerdict) -> CellVerdict:
    """Of a prompt that the cache holds behind other words alone, what was served was computed with them in
    view: however little that moved, it is no pass."""
    moved = sum(sends for tokens, sends in verdict.cached.items() if int(tokens) > SHARED)
    if not moved:
        return verdict
    served = f"{moved} of {verdict.sends} sends were served states computed behind other words"
    state = INCONCLUSIVE if verdict.state == PASS else verdict.state
    return replace(verdict, state=state, reason=f"{served}: {verdict.reason}")


def _figures(shift: Shift, limits: Thresholds) -> tuple[Figure, Figure]:
    found = shift.evidence
    least = "least_margin" if shift.size == JSD else "least_move"
    return (
        Figure(
            f"p that the {shift.size} exceeds that of {shift.control} by chance (fails beyond the margin)",
            shift.adjusted,
            ">=",
            limits.alpha,
            f"thresholds.alpha; sign flips over {found.n} prompts, Holm over the run",
            shift.adjusted >= limits.alpha,
        ),
        Figure(
            f"{shift.size} above {shift.control}, nats: upper limit",
            found.upper,
            "<",
            found.margin,
            f"max(kappa {limits.kappa:g} x control floor, {least} {getattr(limits, least):g}) of thresholds",
            found.bounded,
        ),
    )


def _with_elevation(verdict: CellVerdict, measured: Measured, limits: Thresholds) -> CellVerdict:
    for size, name in ((JSD, "elevated"), (MOVE, "elevated_move")):
        limit = getattr(limits, name)
        hits = np.array(list(measured.sizes[size].values()))
        floor = np.array(list(measured.floors[size].values()))
        if verdict.state != PASS or not elevated(hits, floor, limit):
            continue
        median, what = float(np.median(hits)), size.removeprefix("mean ")
        figure = Figure(
            f"median {what} of control hits, nats", median, "<=", limit, f"thresholds.{name}", False
        )
        reason = (
            f"elevated hits: control hits are {median:.2g} nat (median {what}) from cold, above {limit:g} "
            "and above the cold floor; a shift common to suspects and controls would not show"
        )
        verdict = replace(verdict, state=INCONCLUSIVE, reason=reason, figures=(*verdict.figures, figure))
    return verdict


def _control_of(suspect: Measured, cells: Sequence[Measured]) -> Measured | None:
    same = [
        cell for cell in cells if cell.cell.kind == "control" and cell.cell.position == suspect.cell.position
    ]
    return min(same, key=lambda cell: cell.cell.tail, default=None)


def _proven(sends: Sends) -> BoolArray:
    return np.array(
        [
            one.group.last and one.missed is None and one.agreement.kind not in ("unreadable", OTHER_TOKENS)
            for one in sends.judged
        ],
        dtype=bool,
    )


def _sizes(sends: Sends, proven: BoolArray) -> dict[str, dict[str, float]]:
    return {
        JSD: _by_prompt(sends, proven, sends.found.jsd_lower),
        MOVE: _by_prompt(sends, proven, sends.found.moved),
    }


def _by_prompt(sends: Sends, proven: BoolArray, values: FloatArray) -> dict[str, float]:
    prompts = [one.group.prompt for one, counts in zip(sends.judged, proven, strict=True) if counts]
    index = {name: number for number, name in enumerate(dict.fromkeys(prompts))}
    if not index:
        return {}
    numbers = np.array([index[name] for name in prompts])
    _, means = prompt_means(numbers, values[proven])
    return dict(zip(index, means.tolist(), strict=True))
