"""The verdict of one cell from its observations: what counts as exercised, what as corrupt, what decides."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fidelity.compare import Agreement
from fidelity.comparison import Sends, Tie
from fidelity.evidence import Judged
from fidelity.observations import Answer
from fidelity.plan import Thresholds
from fidelity.probes.cells import Cell
from fidelity.stats.divergence import Divergences as Found
from fidelity.stats.rates import clopper_pearson, prompts_needed
from fidelity.stats.topk import FloatArray
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Divergences,
    Example,
    Figure,
    Spread,
)

EXAMPLES = 3


def judge_floor(arm: str, cell: Cell, sends: Sends, tie: Tie, limits: Thresholds) -> CellVerdict:
    """Cold against cold again: the run-to-run floor of this length. A broken cold answer counts here."""
    broken = []
    for group in sends.groups:
        rules = group.cold_rules(tie.threshold)
        if rules:
            broken.append(Judged(group, group.cold, Agreement("broken", math.inf, rules), None))
    floor = Cell(f"L={cell.length} cold", "floor", cell.length, cell.length, "cold against cold again")
    return _verdict(arm, floor, sends, tie, limits, broken)


def judge_hits(
    arm: str, cell: Cell, sends: Sends, tie: Tie, limits: Thresholds, min_tail: int = 1
) -> CellVerdict:
    """Hits against their cold answers. A guard that leaves no tail this short makes it a structural gate:
    every re-send must recompute at least `min_tail` tokens and answer as the cold one does."""
    verdict = _verdict(arm, cell, sends, tie, limits)
    if min_tail <= cell.tail:
        return verdict
    seen = [one.send.tail_seen for one in sends.judged]
    short = sum(tail is not None and tail < min_tail for tail in seen)
    if short:
        reason = f"the guard leaves no tail under {min_tail}, yet {short} re-sends recomputed less"
        return replace(verdict, state=FAIL, reason=reason)
    if verdict.state == PASS:
        tails = ", ".join(verdict.tails)
        return replace(verdict, reason=f"one-token path removed: tails {tails}; {verdict.reason}")
    return verdict


def _verdict(
    arm: str, cell: Cell, sends: Sends, tie: Tie, limits: Thresholds, broken: Sequence[Judged] = ()
) -> CellVerdict:
    """`broken` are cold sends to count among the judged ones."""
    counted = sends.counted
    judged = [one for one, counts in zip(sends.judged, counted, strict=True) if counts] + list(broken)
    prompts = sum(group.last for group in sends.groups)
    corrupt = {one.group.prompt for one in judged if one.agreement.corrupt}
    unproven = {one.group.prompt for one in judged if one.missed or one.agreement.kind == "unreadable"}
    exercised = {one.group.prompt for one in judged} - unproven | corrupt
    misses = Counter(one.missed for one in judged if one.missed)
    misses.update(
        _unreadable(one) for one in judged if one.agreement.kind == "unreadable" and one.missed is None
    )
    rules = Counter(rule.split(":")[0].split(" (")[0] for one in judged for rule in one.agreement.rules)
    lower, upper = clopper_pearson(len(corrupt), len(exercised), limits.confidence)
    figures = _figures(len(corrupt), len(exercised), lower, upper, limits) if exercised else ()
    state, reason = _decide(len(corrupt), len(exercised), prompts, rules, misses, lower, upper, limits)
    crashed = {one.group.prompt for one in sends.judged if one.send.answer.crashed}
    if state == PASS and crashed:
        # The retry was fine; that the first try broke the server or its answer is no pass.
        state, reason = INCONCLUSIVE, f"{len(crashed)} of {prompts} prompts had a send that the server failed"
    faces: Counter[str] = Counter()
    for one in judged:
        if one.send.answer.faces:
            faces.update(one.send.answer.faces)
    seen = [one.send for one in judged if one.send.tail_seen is not None]
    return CellVerdict(
        arm=arm,
        probe="resend",
        name=cell.name,
        kind=cell.kind,
        length=cell.length,
        tail=None if cell.kind == "floor" else cell.tail,
        why=cell.why,
        state=state,
        reason=reason,
        prompts=prompts,
        exercised=len(exercised),
        corrupt=len(corrupt),
        sends=len(judged),
        corrupt_sends=sum(one.agreement.corrupt for one in judged),
        agreement=dict(Counter(one.agreement.kind for one in judged)),
        rate_lower=lower,
        rate_upper=upper,
        divergences=_divergences(sends.found.rows(counted)),
        tails=_counts(send.tail_seen for send in seen),
        cached=_counts(send.answer.cached_tokens for send in seen),
        rules=dict(rules),
        faces=dict(faces),
        values=sum(one.send.answer.values for one in judged),
        missed=dict(misses),
        figures=(*figures, *_regret(judged, tie)),
        examples=tuple(_examples(judged)),
    )


def _unreadable(one: Judged) -> str:
    answers = (one.group.cold.answer, one.send.answer)
    if any(answer.output_ids and not answer.top for answer in answers):
        return "the answer has no logprobs"
    return "no readable answer to compare"


def _figures(
    corrupt: int, exercised: int, lower: float, upper: float, limits: Thresholds
) -> tuple[Figure, ...]:
    name = f"corrupt-prompt rate, {corrupt} of {exercised}"
    source = f"thresholds.max_rate; exact one-sided limits at {limits.confidence * 100:g}%"
    return (
        Figure(f"{name}: lower limit", lower, "<=", limits.max_rate, source, lower <= limits.max_rate),
        Figure(f"{name}: upper limit", upper, "<=", limits.max_rate, source, upper <= limits.max_rate),
    )


def _regret(judged: Sequence[Judged], tie: Tie) -> Iterator[Figure]:
    flips = [one.agreement.regret for one in judged if one.agreement.kind in ("near-tie", "hard flip")]
    if flips:
        worst = max(flips)
        holds = worst <= tie.threshold
        yield Figure(
            "largest regret of a flipped first token, nats", worst, "<=", tie.threshold, tie.source, holds
        )


def _decide(
    corrupt: int,
    exercised: int,
    prompts: int,
    rules: Counter[str],
    misses: Counter[str],
    lower: float,
    upper: float,
    limits: Thresholds,
) -> tuple[str, str]:
    counted = f"{corrupt} corrupt prompts of {exercised}"
    if rules:
        named = ", ".join(f"{rule} in {count} sends" for rule, count in rules.most_common())
        return FAIL, f"{counted}: {named}"
    if corrupt and not lower <= limits.max_rate:
        return FAIL, f"{counted}: at least {lower:.1%} at {limits.confidence * 100:g}%"
    if not exercised:
        if not prompts:
            return NOT_EXERCISED, "no prompt was measured"
        return NOT_EXERCISED, "; ".join(
            f"{why} ({n} sends)" for why, n in misses.most_common()
        ) or "no send was made"
    bound = f"at most {upper:.2g}" if upper < 0.01 else f"at most {_percent(upper)}"
    said = f"{counted}: {bound} at {limits.confidence * 100:g}%"
    if not upper <= limits.max_rate:
        needed = prompts_needed(limits.max_rate, limits.confidence, corrupt) - exercised
        return (
            INCONCLUSIVE,
            f"{said}, allowed are {_percent(limits.max_rate)}; {needed} more clean prompts would decide",
        )
    if exercised < prompts:
        why = misses.most_common(1)[0][0] if misses else "the others have no such send"
        return INCONCLUSIVE, f"only {exercised} of {prompts} prompts took the path ({why})"
    return PASS, said


def _percent(rate: float) -> str:
    return f"{math.ceil(rate * 1000) / 10:g} %"


def _divergences(found: Found) -> Divergences | None:
    if not len(found.kl_lower):
        return None
    return Divergences(
        kl_lower=_spread(found.kl_lower),
        jsd_lower=_spread(found.jsd_lower),
        jsd_upper=_spread(found.jsd_upper),
        p_covered=float(np.median(found.p_covered)),
        q_covered=float(np.median(found.q_covered)),
    )


def _spread(values: FloatArray) -> Spread:
    worst = np.where(np.isfinite(values), values, np.inf)
    middle, high = np.quantile(worst, [0.5, 0.95], method="higher")
    return Spread(
        n=len(values),
        nonfinite=int((~np.isfinite(values)).sum()),
        median=float(middle),
        p95=float(high),
        maximum=float(worst.max()),
    )


def _examples(judged: Sequence[Judged]) -> Iterator[Example]:
    seen: set[str] = set()
    corrupt = [one for one in judged if one.agreement.corrupt]
    # A group with the longer sends reads best.
    for one in sorted(corrupt, key=lambda one: one.group.show_hit is None):
        if one.group.prompt in seen or len(seen) == EXAMPLES:
            continue
        seen.add(one.group.prompt)
        is_hit = one.send.role == "hit"
        other = one.group.show_hit if is_hit and one.group.show_hit else one.send
        cold = one.group.show_cold if is_hit and one.group.show_cold else one.group.cold
        why = one.agreement.rules[0] if one.agreement.rules else one.agreement.kind
        yield Example(
            prompt=one.group.prompt,
            expected=one.send.expected_text,
            cold=_text(cold.answer),
            other=_text(other.answer),
            cached_tokens=one.send.answer.cached_tokens,
            tail=one.send.tail_seen,
            why=why,
            order=one.send.order,
        )


def _text(answer: Answer) -> str:
    if answer.text is not None:
        return answer.text
    return answer.error or f"ids {answer.output_ids}"


def _counts(values: Iterator[int | None]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(v for v in values if v is not None).items())}
