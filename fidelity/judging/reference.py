"""Cold answers against a trusted server's: for faults that cold and cached sends share.

For each cold send, d compares this arm's first token with the reference's for the same ids: JSD (lower bound)
and mean |delta logprob| over the ids that both told; for each generated answer it is the mean |delta logprob|
of its tokens, both from clean prefills; in nats. A cell passes where the upper bootstrap limit of the mean of
d over prompts is within max(kappa x the same of the reference with itself, a least margin). It fails where
the lower limit, at 1 - alpha, is beyond that, and by any token that the reference was sure against. A
reference that breaks an absolute rule itself proves nothing about another server.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fidelity.compare import NAN_FACES, broken_rules, compare_first_token, top_probability
from fidelity.evidence import MISMATCHED, groups_of, not_cold
from fidelity.judging import reference_draft
from fidelity.judging.few import decide, rate_limits
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation, Row
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.reference import DECODE, PROBE, answers
from fidelity.reference import COLD, SCORED
from fidelity.scoring import HARD, HARD_SHARE, LEAST_HARD, SURE
from fidelity.stats.divergence import divergence
from fidelity.stats.equivalence import margin, upper_limit
from fidelity.stats.topk import FloatArray, TopK, undefined_logprobs
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict, Example, Figure, Reading

JSD, MOVE = "mean JSD", "mean |delta logprob|"
LEAST = {JSD: "least_margin", MOVE: "least_move"}
EXAMPLES = 3

Ids = tuple[int, ...]
Answered = Mapping[tuple[str, Ids], Observation]
"""What the reference answered, by role and ids."""


@dataclass(frozen=True)
class Pair:
    """One answer held against the reference's. `absent`: it has none to the same ids. Else `missed` or
    `distrust` (the reference's own fault) is why the two cannot be compared, `corrupt` why they differ beyond
    any rounding. `sizes` and `floors` (the reference with itself) are in nats."""

    prompt: str
    absent: bool = False
    missed: str | None = None
    distrust: str | None = None
    corrupt: str | None = None
    agreement: str | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    example: Example | None = None


def judge(
    plan: RunPlan,
    arm: Arm,
    record: ArmRecord,
    observations: Sequence[Observation],
    told: Sequence[Observation],
    limits: Thresholds,
) -> list[CellVerdict]:
    """One cell for each length, one for the generated answers, one for the draft's acceptance. `observations`
    are the arm's, `told` what the reference answered."""
    answered: dict[tuple[str, Ids], Observation] = {}
    for obs in told:
        key = obs.role, tuple(obs.input_ids)
        if key not in answered or answered[key].answer.failed:
            answered[key] = obs
    common: dict[str, Any] = {"arm": arm.name, "why": record.reference}
    cells = []
    if "resend" in plan.selected:
        by_length: dict[int, list[Pair]] = {cell.length: [] for cell in record.cells}
        for group in groups_of([obs for obs in observations if obs.probe == "resend"]):
            if group.last and group.cold.length in by_length:
                by_length[group.cold.length].append(_cold_pair(group.cold, answered, limits))
        for length, pairs in sorted(by_length.items()):
            name = f"L={length} cold against the reference"
            cells.append(_cell("cold answers", pairs, plan, limits, name=name, length=length, **common))
    if "decode" in plan.selected:
        pairs = list(_scored_pairs(observations, answered))
        cells.append(_cell("generated answers", pairs, plan, limits, name=DECODE, **common))
    if "draft" in plan.selected and "draft" not in record.skipped:
        cells.append(reference_draft.judge(plan, arm, record, observations, told))
    return cells


def _cold_pair(cold: Observation, answered: Answered, limits: Thresholds) -> Pair:
    ids = tuple(cold.input_ids)
    trusted = answered.get((COLD[0], ids))
    if trusted is None:
        return Pair(cold.prompt, absent=True)
    if rules := broken_rules(trusted.answer, limits.near_tie):
        return Pair(cold.prompt, distrust=f"{cold.prompt}: {rules[0]}")
    why = not_cold(trusted)
    missed = f"of the reference: {why}" if why else not_cold(cold)
    agreement = compare_first_token(trusted.answer, cold.answer, limits.near_tie)
    if missed is None and agreement.kind == "unreadable":
        missed = "no readable answer to compare"
    if missed is not None:
        return Pair(cold.prompt, missed=missed)
    corrupt = None
    if agreement.kind == "broken":
        corrupt = f"{cold.prompt}: {agreement.rules[0]}"
    elif agreement.corrupt and top_probability(trusted.answer) >= limits.sure:
        least = "at least " if agreement.kind == "off-list" else ""
        corrupt = f"{cold.prompt}: {agreement.kind}, regret {least}{agreement.regret:.1f} nat"
    again = answered.get((COLD[1], ids))
    good = again is not None and not broken_rules(again.answer, limits.near_tie) and not not_cold(again)
    return Pair(
        cold.prompt,
        corrupt=corrupt,
        agreement=agreement.kind,
        sizes={} if agreement.kind == "broken" else _first_token_sizes(trusted.answer, cold.answer),
        floors=_first_token_sizes(trusted.answer, again.answer) if good and again else {},
        example=_example(cold, trusted, corrupt),
    )


def _first_token_sizes(trusted: Answer, other: Answer) -> dict[str, float]:
    asked = _top(trusted.asked) if trusted.asked and trusted.asked[0] else None
    found = divergence(_top(trusted.top), _top(other.top), p_asked=asked)
    return {JSD: found.jsd_lower, MOVE: found.moved}


def _top(rows: Sequence[Row]) -> TopK:
    ids, logprobs = zip(*rows[0], strict=True) if rows and rows[0] else ((), ())
    return TopK.of(ids, logprobs)


def _scored_pairs(observations: Sequence[Observation], answered: Answered) -> Iterator[Pair]:
    """Every answer that both scored, after each prompt that decode sent."""
    mine: dict[Ids, Answer] = {}
    for obs in observations:
        if obs.probe == PROBE and obs.role == SCORED[0] and not obs.answer.failed:
            mine[tuple(obs.input_ids)] = obs.answer
    prompts: dict[Ids, str] = {}
    for sent in answers([obs for obs in observations if obs.visit == 1]):
        mine[sent.ids] = sent.answer
        prompts[sent.ids[: sent.prompt_tokens]] = sent.prompt
    for start, prompt in prompts.items():
        after = [ids for role, ids in answered if role == SCORED[0] and ids[: len(start)] == start]
        both = [ids for ids in after if ids in mine]
        if not both:
            missed = "this server did not score the reference's answer" if after else None
            yield Pair(prompt, absent=not after, missed=missed)
        for ids in both:
            trusted, again = answered[SCORED[0], ids], answered.get((SCORED[1], ids))
            own = mine[ids]
            yield _scored_pair(prompt, own, trusted.answer, again.answer if again is not None else None)


def _scored_pair(prompt: str, own: Answer, trusted: Answer, again: Answer | None) -> Pair:
    if any(trusted.faces.get(face) for face in NAN_FACES):
        return Pair(prompt, distrust=f"{prompt}: a clean prefill is not a number")
    if trusted.failed:
        return Pair(prompt, missed="of the reference: the request failed")
    if own.mismatched or trusted.mismatched:
        return Pair(prompt, missed=MISMATCHED)
    if any(own.faces.get(face) for face in NAN_FACES):
        return Pair(prompt, corrupt=f"{prompt}: the clean prefill is not a number")
    if not own.scored or len(own.scored) != len(trusted.scored):
        return Pair(prompt, missed="no logprobs of the same tokens to compare")
    regret = np.fmax(_regret(own), _regret(trusted))
    regret = regret[~np.isnan(regret)]
    hard = int(np.count_nonzero(regret > HARD))
    corrupt = None
    if regret.size and (regret.max() > SURE or hard >= max(LEAST_HARD, HARD_SHARE * regret.size)):
        corrupt = (
            f"{prompt}: {hard} of {regret.size} tokens are not what both would say "
            f"(worst {regret.max():.1f} nat)"
        )
    floors = {}
    if again is not None and len(again.scored) == len(trusted.scored):
        floors = {MOVE: _mean_move(trusted, again)}
    return Pair(prompt, corrupt=corrupt, sizes={MOVE: _mean_move(trusted, own)}, floors=floors)


def _regret(answer: Answer) -> FloatArray:
    """nats that each scored token lies below the first choice at its place; NaN where that is not told."""
    best = [max((value for _, value in row), default=np.nan) for row in answer.scored_top]
    if len(best) != len(answer.scored):
        return np.full(len(answer.scored), np.nan)
    return np.asarray(np.array(best) - np.array(answer.scored), dtype=np.float64)


def _mean_move(one: Answer, other: Answer) -> float:
    """Infinite where a logprob of either is none."""
    both = np.array([one.scored, other.scored])
    return float(np.inf if undefined_logprobs(both).any() else np.abs(both[0] - both[1]).mean())


def _cell(what: str, pairs: Sequence[Pair], plan: RunPlan, limits: Thresholds, **common: Any) -> CellVerdict:
    found = [pair for pair in pairs if not pair.absent]
    missed = Counter(pair.missed for pair in found if pair.missed)
    distrust = [pair.distrust for pair in found if pair.distrust]
    corrupt = [pair.corrupt for pair in found if pair.corrupt]
    exercised = len(found) - missed.total() - len(distrust)
    here = f"{len(found)} of {len(pairs)} {what} have one to the same ids in the reference"
    why = corrupt or [*missed] or [here if pairs else "nothing was measured"]
    state, reason = decide(what, len(corrupt), exercised, len(found), why, limits)
    lower, upper, figures = rate_limits(len(corrupt), exercised, limits)
    moved = list(_figures(found, limits, plan.seed))
    for figure, beyond in moved:
        if beyond and state != FAIL:
            state, reason = FAIL, f"the {what} are not the reference's: {beyond}"
        elif state == PASS and not figure.holds:
            state, reason = INCONCLUSIVE, f"not shown to be the reference's: {_said(figure)}"
    if distrust:
        state = INCONCLUSIVE
        reason = f"{len(distrust)} of the reference's own answers are broken ({distrust[0]}): it cannot judge"
    elif state == PASS:
        reason = "; ".join([reason, *(_said(figure) for figure, _ in moved)])
    if state != NOT_EXERCISED and len(found) < len(pairs):
        reason = f"{here}; {reason}"
    return CellVerdict(
        probe=PROBE,
        kind="suspect",
        state=state,
        reason=reason,
        prompts=len(pairs),
        exercised=exercised,
        corrupt=len(corrupt),
        sends=exercised,
        corrupt_sends=len(corrupt),
        agreement=dict(Counter(pair.agreement for pair in found if pair.agreement)),
        rate_lower=lower,
        rate_upper=upper,
        missed=dict(missed),
        figures=(*figures, *(figure for figure, _ in moved)),
        examples=tuple(pair.example for pair in found if pair.example)[:EXAMPLES],
        readings=tuple(_readings(found)),
        **common,
    )


def _said(figure: Figure) -> str:
    return f"{figure.name.split(' from ')[0]} at most {figure.value:.2g}, allowed {figure.threshold:.2g}"


def _figures(pairs: Sequence[Pair], limits: Thresholds, seed: int) -> Iterator[tuple[Figure, str]]:
    """Each size that was measured: what a pass must hold, and in words what is beyond it, if it is."""
    for size, least in LEAST.items():
        values = _by_prompt([pair.sizes for pair in pairs], pairs, size)
        if not values.size:
            continue
        floor = _by_prompt([pair.floors for pair in pairs], pairs, size)
        allowed = margin(float(floor.mean()) if floor.size else 0.0, limits.kappa, getattr(limits, least))
        upper = upper_limit(values, limits.confidence, seed)
        lower = -upper_limit(-values, 1 - limits.alpha, seed)
        source = f"max(thresholds.kappa x the reference's own noise, thresholds.{least}); BCa bootstrap"
        name = f"{size} from the reference ({values.size} prompts), nats: upper limit"
        beyond = (
            f"{size} {values.mean():.2g} nat, at least {lower:.2g}, allowed {allowed:.2g}"
            if lower > allowed
            else ""
        )
        yield Figure(name, upper, "<=", allowed, source, bool(upper <= allowed)), beyond


def _by_prompt(sizes: Sequence[Mapping[str, float]], pairs: Sequence[Pair], size: str) -> FloatArray:
    values: dict[str, list[float]] = defaultdict(list)
    for pair, own in zip(pairs, sizes, strict=True):
        if size in own:
            values[pair.prompt].append(own[size])
    return np.array([np.mean(one) for one in values.values()])


def _readings(pairs: Sequence[Pair]) -> Iterator[Reading]:
    yield Reading("found in the reference", len(pairs))
    for size in LEAST:
        name = size.removeprefix("mean ")
        for whose, sizes in (
            ("", [p.sizes for p in pairs]),
            ("the reference with itself: ", [p.floors for p in pairs]),
        ):
            values = _by_prompt(sizes, pairs, size)
            if values.size:
                yield Reading(f"{whose}{name}, median", float(np.median(values)), "nat")
                yield Reading(f"{whose}{name}, largest", float(values.max()), "nat")


def _example(cold: Observation, trusted: Observation, corrupt: str | None) -> Example | None:
    if corrupt is None:
        return None
    return Example(
        prompt=cold.prompt,
        expected=cold.expected_text,
        cold=str(trusted.answer.text or trusted.answer.output_ids),
        other=str(cold.answer.text or cold.answer.error or cold.answer.output_ids),
        cached_tokens=cold.answer.cached_tokens,
        tail=None,
        why=f"shown as cold is what the reference answered, as hit this server's cold answer; {corrupt}",
        order=cold.order,
    )
