"""The verdict of the decode probe: generated tokens against a clean prefill of the same ids."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from fidelity.compare import longest_run
from fidelity.judging.few import count_faces, decide, rate_limits
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.decode import GREEDY, SAMPLED, generated, samples
from fidelity.scoring import Scored, corrupt_rules, score
from fidelity.stats.equivalence import margin, upper_limit
from fidelity.stats.scores import summarise, token_scores
from fidelity.stats.topk import FloatArray
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Example,
    Figure,
    Reading,
)

REFERENCE = 2e-3
"""nats: the mean k3 up to which sglang's own tests accept a hybrid model (Qwen3-Next-80B); shown, never
decides."""

EXAMPLES = 3
SHOWN_CHARACTERS = 80


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """One cell for each temperature that was planned."""
    cells = [GREEDY, *([SAMPLED] if samples(plan) else [])]
    planned = plan.decode_size[0]
    return [_judge_cell(plan, arm.name, cell, planned, observations, limits) for cell in cells]


def _judge_cell(
    plan: RunPlan,
    arm: str,
    cell: str,
    planned: int,
    observations: Sequence[Observation],
    limits: Thresholds,
) -> CellVerdict:
    found = list(generated(observations, cell))
    corrupt = [(obs, roles, rules) for obs, roles, rules in found if rules]
    scored: list[Scored] = []
    floors: list[FloatArray] = []
    missed: Counter[str] = Counter()
    for obs, roles, rules in found:
        one = score(obs.answer, roles["rescore"].answer) if "rescore" in roles else None
        reason = _missed(obs, one)
        if reason and not rules:
            missed[reason] += 1
        elif one is not None:
            scored.append(one)
            again = score(obs.answer, roles["rescore2"].answer) if "rescore2" in roles else None
            if again is not None:
                floors.append(again.clean - one.clean)
    exercised = len(found) - sum(missed.values())
    why = [rules[0] for _, _, rules in corrupt] or list(missed)
    if cell == SAMPLED and not found:
        why = ["the leg at temperature 0 was not clean"]
    state, reason = decide("answers", len(corrupt), exercised, planned, why, limits)
    excused = [obs for obs, roles, rules in found if not rules and corrupt_rules(obs, roles.get("rescore"))]
    if state == PASS and excused:
        state = INCONCLUSIVE
        reason = f"{len(excused)} of {len(found)} answers hold tokens that only noise of its own explains"
    if state == NOT_EXERCISED and found and all(_silent(obs) for obs, _, _ in found):
        state, reason = NOT_APPLICABLE, "the server gives no logprobs"
    lower, upper, figures = rate_limits(len(corrupt), exercised, limits)
    moved = _moved(scored, floors, limits, plan.seed)
    if moved is not None:
        figures = (*figures, moved)
        if state == PASS and not moved.holds:
            state, reason = _state_of_move(scored, moved)
    silent = sum(obs.alone is None for obs, _, _ in found)
    if state == PASS and silent and plan.target.shared:
        state = INCONCLUSIVE
        reason = f"nothing shows that {silent} of {len(found)} answers were decoded alone (--assume-idle)"
    return CellVerdict(
        arm=arm,
        probe="decode",
        name=cell,
        kind="suspect",
        state=state,
        reason=reason,
        why="one request in flight, scored again by a clean prefill",
        prompts=max(planned, len(found)),
        exercised=exercised,
        corrupt=len(corrupt),
        sends=len(found),
        corrupt_sends=len(corrupt),
        rate_lower=lower,
        rate_upper=upper,
        rules=dict(Counter(rule.split(":")[0] for _, _, rules in corrupt for rule in rules[:1])),
        faces=count_faces(obs for obs, _, _ in found),
        values=sum(obs.answer.values for obs, _, _ in found),
        missed=dict(missed),
        figures=figures,
        examples=tuple(_examples(corrupt)),
        readings=tuple(_readings(found, scored, floors, cell)),
    )


def _silent(obs: Observation) -> bool:
    """An answer with tokens and without a logprob for any of them."""
    return bool(obs.answer.output_ids) and not obs.answer.logprobs and not obs.answer.faces


def _missed(obs: Observation, scored: Scored | None) -> str | None:
    """Why an answer says nothing about single-request decode."""
    if obs.answer.failed:
        return "the request failed"
    if obs.alone is False:
        return "other requests ran at the same time"
    if obs.answer.mismatched:
        return "the logprobs are of other tokens than the answer's"
    if scored is None:
        return "no logprobs of the answer and of its clean prefill to compare"
    return None


def _moved(
    scored: Sequence[Scored], floors: Sequence[FloatArray], limits: Thresholds, seed: int
) -> Figure | None:
    """Mean |delta logprob| per answer against max(kappa x that of two clean prefills, least_move)."""
    means = np.array([_mean_move(one.delta) for one in scored])
    if not means.size:
        return None
    floor = float(np.mean([_mean_move(delta) for delta in floors])) if floors else 0.0
    allowed = margin(floor, limits.kappa, limits.least_move)
    upper = upper_limit(means, limits.confidence, seed)
    source = "max(thresholds.kappa x cold floor, thresholds.least_move); BCa bootstrap over answers"
    name = f"mean |delta logprob| of {means.size} answers, nats: upper limit"
    return Figure(name, upper, "<=", allowed, source, bool(upper <= allowed))


def _mean_move(delta: FloatArray) -> float:
    """NaN moves count as infinite."""
    return float(np.mean(np.where(np.isnan(delta), math.inf, np.abs(delta))))


def _state_of_move(scored: Sequence[Scored], moved: Figure) -> tuple[str, str]:
    mean = float(np.mean([_mean_move(one.delta) for one in scored]))
    said = (
        f"mean |delta logprob| {mean:.3g} nat, upper limit {moved.value:.3g}, allowed {moved.threshold:.3g}"
    )
    lowest = min(_mean_move(one.delta) for one in scored)
    return (FAIL if lowest > moved.threshold else INCONCLUSIVE), said


def _readings(
    found: Sequence[tuple[Observation, dict[str, Observation], tuple[str, ...]]],
    scored: Sequence[Scored],
    floors: Sequence[FloatArray],
    cell: str,
) -> Iterator[Reading]:
    tokens = sum(len(obs.answer.output_ids) for obs, _, _ in found)
    nan = sum(int(one.undefined.sum()) for one in scored)
    nan += sum(obs.answer.faces.get("http nan", 0) for obs, _, _ in found)
    yield Reading("tokens", tokens)
    yield Reading("NaN tokens", nan)
    yield Reading(
        "longest run of one id", max((longest_run(o.answer.output_ids) for o, _, _ in found), default=0)
    )
    # At temperature 1 a token far below the first choice is no fault.
    starts = [bad for one in scored if (bad := one.first_bad(regret=cell == GREEDY)) is not None]
    if starts:
        yield Reading("first bad token, median", float(np.median(starts)))
        yield Reading("first bad token, earliest", min(starts))
    if not scored:
        return
    own = np.concatenate([one.generated for one in scored])
    clean = np.concatenate([one.clean for one in scored])
    k3 = token_scores(own, clean).k3
    summary = summarise(k3, "KL estimate" if cell == SAMPLED else "score")
    label = "KL estimate, k3" if cell == SAMPLED else "k3 score"
    yield Reading(f"{label}, mean", summary.mean, "nat")
    yield Reading("k3 median", summary.median, "nat")
    yield Reading("k3 p99", summary.p99, "nat")
    yield Reading("k3 share above 0.125 nat", summary.share_above)
    yield Reading(
        "sglang's threshold for the mean k3 of a hybrid model (shown, decides nothing)", REFERENCE, "nat"
    )
    yield from _quantiles("|delta logprob|", np.abs(clean - own))
    regret = np.concatenate([one.regret for one in scored])
    if cell == GREEDY and not np.isnan(regret).all():
        yield Reading("regret under the clean prefill, largest", float(np.nanmax(regret)), "nat")
    if floors:
        delta = np.concatenate(floors)
        yield Reading("cold floor: k3 mean", float(np.mean(np.expm1(delta) - delta)), "nat")
        yield from _quantiles("cold floor: |delta logprob|", np.abs(delta))


def _quantiles(name: str, values: FloatArray) -> Iterator[Reading]:
    for level in (0.5, 0.9, 0.99):
        yield Reading(f"{name} p{level * 100:g}", float(np.quantile(values, level)), "nat")


def _examples(
    corrupt: Sequence[tuple[Observation, dict[str, Observation], tuple[str, ...]]],
) -> Iterator[Example]:
    for obs, _, rules in list(corrupt)[:EXAMPLES]:
        yield Example(
            prompt=obs.prompt,
            expected="",
            cold="",
            other=(obs.answer.text or obs.answer.error or "")[:SHOWN_CHARACTERS],
            cached_tokens=obs.answer.cached_tokens,
            tail=obs.tail_seen,
            why="; ".join(rules),
            order=obs.order,
        )
