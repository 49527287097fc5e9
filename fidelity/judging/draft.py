"""The verdict of the draft probe: is the output right, and is the draft accepted alone as in a batch?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fidelity.engines.formed import LOG, METRICS
from fidelity.engines.speculation import Acceptance, acceptance
from fidelity.engines.stream import time_per_token
from fidelity.judging.few import count_faces, decide, rate_limits
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.draft import ALONE, TOGETHER
from fidelity.scoring import corrupt_rules, score
from fidelity.stats.bootstrap import Interval, median_interval, paired_ratio
from fidelity.stats.scores import token_scores
from fidelity.stats.topk import FloatArray
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    SHOWN,
    CellVerdict,
    Compared,
    Comparison,
    Figure,
    Reading,
)

BROKEN, KEPT = 0.9, 0.8
"""Of the acceptance in a batch, what a draft keeps alone: broken where the upper limit is below BROKEN, as
good where the lower limit reaches KEPT. Texts of two runs differ after a near-tie, and the acceptance with
them."""

HARDLY_EVER = 0.05
"""Acceptance rate under which a draft is as good as none."""


@dataclass(frozen=True)
class _Prompt:
    """One prompt of an arm, by `group`: its own answers, and its row in a batch that is shown to have run."""

    decode: Observation | None = None
    rescore: Observation | None = None
    timed: Observation | None = None
    row: Observation | None = None


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """Two cells: the output against a clean prefill, and the acceptance alone against that in a batch."""
    prompts = _prompts(observations)
    return [_output(plan, arm.name, prompts, limits), _acceptance(plan, arm.name, prompts, observations)]


def compare(
    plan: RunPlan,
    records: Mapping[str, ArmRecord],
    by_arm: Mapping[str, Sequence[Observation]],
    limits: Thresholds,
) -> list[Comparison]:
    """Each further arm against the first, paired by prompt. Shown: the arms' own cells decide."""
    names = [arm.name for arm in plan.arms if "draft" not in records.get(arm.name, _NO_RECORD).skipped]
    first, *others = names or [""]
    found = []
    for other in others:
        pairs = (_prompts(by_arm.get(first, ())), _prompts(by_arm.get(other, ())))
        rows = list(_rows(*pairs, plan.seed))
        if rows:
            said = (
                f"{other} accepts {rows[0].ratio:.2f} times the tokens that {first} does on the same prompts"
            )
            found.append(
                Comparison("draft", f"{other} against {first}", (first, other), SHOWN, said, tuple(rows))
            )
    return found


_NO_RECORD = ArmRecord("", 1)


def _prompts(observations: Sequence[Observation]) -> dict[str, _Prompt]:
    """By group; only answered sends of the last attempt, and rows of batches that are shown to have
    formed."""
    by_group: dict[str, dict[str, Observation]] = {}
    for obs in sorted(observations, key=lambda one: one.attempt):
        if obs.answer.failed:
            continue
        if obs.cell == ALONE:
            by_group.setdefault(obs.group, {})[obs.role] = obs
        elif obs.cell == TOGETHER and obs.formed in (LOG, METRICS):
            by_group.setdefault(obs.prompt, {})["row"] = obs
    return {
        group: _Prompt(*(roles.get(role) for role in ("decode", "rescore", "timed", "row")))
        for group, roles in by_group.items()
    }


def _output(plan: RunPlan, arm: str, prompts: Mapping[str, _Prompt], limits: Thresholds) -> CellVerdict:
    found = [(one.decode, corrupt_rules(one.decode, one.rescore)) for one in prompts.values() if one.decode]
    scored = [
        scores
        for one in prompts.values()
        if one.decode and one.rescore and (scores := score(one.decode.answer, one.rescore.answer))
    ]
    corrupt = [rules[0] for _, rules in found if rules]
    exercised = max(len(scored), len(corrupt))
    why = corrupt or ["no logprobs of the answer and of its clean prefill to compare"]
    planned = plan.draft.prompts
    state, reason = decide("answers", len(corrupt), exercised, planned, why, limits)
    lower, upper, figures = rate_limits(len(corrupt), exercised, limits)
    readings = []
    if scored:
        own, clean = (
            np.concatenate([getattr(one, side) for one in scored]) for side in ("generated", "clean")
        )
        readings = [
            Reading("k3 score, mean", float(np.mean(token_scores(own, clean).k3)), "nat"),
            Reading("|delta logprob| p50", float(np.median(np.abs(clean - own))), "nat"),
        ]
    return CellVerdict(
        arm=arm,
        probe="draft",
        name="output",
        kind="suspect",
        state=state,
        reason=reason,
        why="speculative decoding of one request, scored again by a clean prefill",
        prompts=planned,
        exercised=exercised,
        corrupt=len(corrupt),
        sends=len(found),
        corrupt_sends=len(corrupt),
        rate_lower=lower,
        rate_upper=upper,
        faces=count_faces(obs for obs, _ in found),
        values=sum(obs.answer.values for obs, _ in found),
        figures=figures,
        readings=tuple(readings),
    )


def _acceptance(
    plan: RunPlan, arm: str, prompts: Mapping[str, _Prompt], observations: Sequence[Observation]
) -> CellVerdict:
    alone = {group: found for group, one in prompts.items() if (found := _accepted(one.decode))}
    pairs = [
        (alone[group].length, row.length)
        for group, one in prompts.items()
        if group in alone and (row := _accepted(one.row))
    ]
    kept = paired_ratio(*_columns([(row, own) for own, row in pairs]), seed=plan.seed)
    state, reason = _decide(alone, kept, any(obs.cell == TOGETHER for obs in observations))
    return CellVerdict(
        arm=arm,
        probe="draft",
        name="acceptance",
        kind="suspect",
        state=state,
        reason=reason,
        why="tokens accepted alone, where the draft computes one token, and in a batch that the fault spares",
        prompts=plan.draft.prompts,
        exercised=len(pairs) or len(alone),
        sends=len(alone),
        figures=_figures(kept),
        readings=tuple(_readings(prompts, alone, plan.seed)),
    )


def _accepted(obs: Observation | None) -> Acceptance | None:
    return None if obs is None else acceptance(obs.answer)


def _decide(alone: Mapping[str, Acceptance], kept: Interval, batches: bool) -> tuple[str, str]:
    if not alone:
        return NOT_EXERCISED, "the server tells no acceptance (no spec_* figures in its answers)"
    rates = [one.rate for one in alone.values() if one.rate is not None]
    mean = float(np.mean([one.length for one in alone.values()]))
    accepted = f"{mean:.2f} tokens a verification alone"
    if not batches:
        return (
            NOT_APPLICABLE,
            f"{accepted}; no batch was sent, so nothing tells a broken draft from a poor one",
        )
    if not kept.n:
        return INCONCLUSIVE, f"{accepted}; no batch is shown to have run together to compare with"
    said = f"{accepted}, {kept.value:.2f} of that in a batch [{kept.low:.2f}, {kept.high:.2f}]"
    if kept.high < BROKEN:
        return FAIL, f"the draft is worse alone: {said}; it costs speed and changes no logprob"
    if rates and max(rates) < HARDLY_EVER:
        return INCONCLUSIVE, f"the draft is hardly ever accepted, alone or not: {said}"
    return (PASS if kept.low >= KEPT else INCONCLUSIVE), said


def _figures(kept: Interval) -> tuple[Figure, ...]:
    if not kept.n:
        return ()
    source = "paired by prompt, bootstrap of the median at 95%"
    return (
        Figure(
            "acceptance alone, of that in a batch: upper limit",
            kept.high,
            ">=",
            BROKEN,
            source,
            bool(kept.high >= BROKEN),
        ),
        Figure(
            "acceptance alone, of that in a batch: lower limit",
            kept.low,
            ">=",
            KEPT,
            source,
            bool(kept.low >= KEPT),
        ),
    )


def _readings(
    prompts: Mapping[str, _Prompt], alone: Mapping[str, Acceptance], seed: int
) -> Iterator[Reading]:
    yield from _median("accept length alone", [one.length for one in alone.values()], "tokens", seed)
    together = [found.length for one in prompts.values() if (found := _accepted(one.row))]
    yield from _median("accept length in a batch", together, "tokens", seed)
    rates = [one.rate for one in alone.values() if one.rate is not None]
    yield from _median("accept rate alone", rates, "", seed)
    timed = [one.timed for one in prompts.values() if one.timed]
    yield from _median("TPOT", [time for obs in timed if (time := _tpot(obs))], "ms", seed)
    yield from _median("single stream", [rate for obs in timed if (rate := _speed(obs))], "tokens/s", seed)


def _median(name: str, values: Sequence[float], unit: str, seed: int) -> Iterator[Reading]:
    if values:
        found = median_interval(np.array(values), seed=seed)
        yield Reading(name, found.value, unit, found.low, found.high)


def _rows(first: Mapping[str, _Prompt], second: Mapping[str, _Prompt], seed: int) -> Iterator[Compared]:
    def length(one: _Prompt) -> float | None:
        found = _accepted(one.decode)
        return found.length if found else None

    def rate(one: _Prompt) -> float | None:
        found = _accepted(one.decode)
        return found.rate if found else None

    measures = (
        ("accept length", "tokens", length),
        ("accept rate", "", rate),
        ("TPOT", "ms", lambda one: _tpot(one.timed)),
        ("single stream", "tokens/s", lambda one: _speed(one.timed)),
    )
    for name, unit, value in measures:
        pairs = [
            (before, after)
            for group, one in first.items()
            if group in second
            and (before := value(one)) is not None
            and (after := value(second[group])) is not None
        ]
        if pairs:
            own, other = _columns(pairs)
            ratio = paired_ratio(own, other, seed=seed)
            medians = float(np.median(own)), float(np.median(other))
            yield Compared(name, unit, *medians, ratio.value, ratio.low, ratio.high, len(pairs))


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray]:
    table = np.array(pairs, dtype=float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _tpot(obs: Observation | None) -> float | None:
    """Milliseconds from one token to the next."""
    seconds = None if obs is None else time_per_token(obs.answer)
    return None if seconds is None else seconds * 1000


def _speed(obs: Observation | None) -> float | None:
    tpot = _tpot(obs)
    return 1000 / tpot if tpot else None
