"""A generated answer against a clean prefill of the same ids, token by token."""

import math
from dataclasses import dataclass

import numpy as np

from fidelity.compare import NEAR_TIE, broken_rules
from fidelity.observations import Answer, Observation
from fidelity.stats.topk import BoolArray, FloatArray, undefined_logprobs

HARD = 1.0
"""nats of regret: beyond what another kernel's rounding moves two near-tied tokens apart."""

SURE = 3.0
"""nats of regret that no rounding explains: one such token is corruption."""

LEAST_HARD = 2
HARD_SHARE = 0.01
"""Hard tokens that make an answer corrupt: so many, and this share of its tokens."""


@dataclass(frozen=True)
class Scored:
    """Of n generated tokens, in nats: `delta` is clean minus generated logprob, `regret` how far the clean
    prefill puts the token below its own first choice. NaN where a logprob is undefined; `undefined` are the
    tokens whose own logprob is."""

    generated: FloatArray
    clean: FloatArray
    regret: FloatArray
    undefined: BoolArray

    @property
    def delta(self) -> FloatArray:
        return self.clean - self.generated

    def first_bad(self, *, regret: bool = True) -> int | None:
        """The first token (from 0) that is undefined or, with `regret`, hard."""
        bad = np.flatnonzero(self.undefined | (~(self.regret <= HARD) & regret))
        return int(bad[0]) if bad.size else None


def score(generated: Answer, clean: Answer) -> Scored | None:
    """Hold a generated answer against the prefill of its prompt and ids; None where there is nothing to
    hold: no tokens, or no logprob for each of them on both sides."""
    count = len(generated.output_ids)
    if not count or len(generated.logprobs) != count or len(clean.scored) != count:
        return None
    own, again = np.array(generated.logprobs), np.array(clean.scored)
    undefined = undefined_logprobs(own) | ~(own > -9999.0)
    again = np.where(undefined_logprobs(again), np.nan, again)
    best = np.array([max((value for _, value in row), default=math.nan) for row in clean.scored_top])
    if best.size != count:
        best = np.full(count, math.nan)
    with np.errstate(invalid="ignore"):
        return Scored(np.where(undefined, np.nan, own), again, np.maximum(best - again, 0.0), undefined)


def corrupt_rules(
    generated: Observation, clean: Observation | None, again: Observation | None = None
) -> tuple[str, ...]:
    """Why a generated answer is corrupt, worst first; empty when it is not.

    Absolute rules of the answer itself, at temperature 0 alone those of its first choice; a clean prefill
    that is broken; and at temperature 0 its regret: one token beyond SURE, or LEAST_HARD and HARD_SHARE of
    them beyond HARD. A run of one id counts only where the clean prefill does not choose it too. With
    `again`, a second clean prefill, both limits are raised by what the two differ in, up to HARD nats: a
    choice can be off by the move of each of two logprobs.
    """
    found = list(broken_rules(generated.answer, NEAR_TIE))
    if generated.temperature > 0:
        found = [rule for rule in found if not rule.startswith("not the top token")]
    runs = [rule for rule in found if rule.startswith("run of one id")]
    found = [rule for rule in found if rule not in runs]
    scored = None if clean is None else score(generated.answer, clean.answer)
    if clean is not None and any(clean.answer.faces.get(face) for face in ("null", "nan", "inf", "http nan")):
        found.append("the clean prefill is not a number")
    if scored is None:
        return (*found, *runs)
    regret = scored.regret[~np.isnan(scored.regret)]
    noise = _noise(clean, again)
    hard = int(np.count_nonzero(regret > HARD + noise))
    many = max(LEAST_HARD, HARD_SHARE * regret.size)
    if generated.temperature == 0 and regret.size and (regret.max() > SURE + 2 * noise or hard >= many):
        worst = f"worst {regret.max():.1f} nat"
        found += [f"{hard} of {regret.size} tokens are not the clean prefill's ({worst})", *runs]
    return tuple(found)


def _noise(clean: Observation | None, again: Observation | None) -> float:
    """nats: the largest move of a scored token between two clean prefills; 0 where there are no two."""
    if clean is None or again is None:
        return 0.0
    one, other = clean.answer.scored, again.answer.scored
    if not one or len(one) != len(other):
        return 0.0
    moves = np.abs(np.array(one) - np.array(other))
    known = moves[np.isfinite(moves)]
    return min(float(known.max()), HARD) if known.size else 0.0
