"""Per-token scores of the decode leg, from the logprobs of the same tokens on two paths.

Tokens x are sampled on path Q (decode) and scored again on path P (re-prefill). With r = p(x) / q(x)
(Schulman 2020, joschu.net/blog/kl-approx.html)

    k1 = -ln r            unbiased for KL(Q || P), changes sign
    k2 = (ln r)^2 / 2     biased, low variance
    k3 = (r - 1) - ln r   unbiased, never negative, but grows like r: one token with ln r = 20 gives 4.9e8

Unbiased holds only where x was drawn from Q at temperature 1. Greedy tokens were not: there these are scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fidelity.stats.topk import ROUNDING, FloatArray, undefined_logprobs

SHARE_ABOVE = 0.125
CAP = 1.0

Label = Literal["score", "KL estimate"]


@dataclass(frozen=True)
class TokenScores:
    """k1, k2, k3 of n tokens, in nats; NaN where a logprob of the token is undefined or above 0."""

    k1: FloatArray
    k2: FloatArray
    k3: FloatArray


@dataclass(frozen=True)
class ScoreSummary:
    """One score over n tokens, in nats but for share_above (0..1) and the counts.

    nonfinite tokens are part of every figure: a NaN makes the mean, the quantiles and the capped mean NaN and
    counts as above the threshold; an infinite score is kept.
    """

    label: Label
    n: int
    nonfinite: int
    mean: float
    median: float
    p95: float
    p99: float
    threshold: float
    share_above: float
    cap: float
    capped_mean: float


def token_scores(decode: FloatArray, prefill: FloatArray) -> TokenScores:
    """Scores of n tokens from their logprobs (nats) [n] when decoded and when prefilled again.

    Raises ValueError when the two differ in length.
    """
    if decode.shape != prefill.shape:
        raise ValueError(f"paired logprobs differ in shape: {decode.shape} and {prefill.shape}")
    wrong = undefined_logprobs(decode) | undefined_logprobs(prefill)
    wrong |= (decode > ROUNDING) | (prefill > ROUNDING)
    with np.errstate(over="ignore", invalid="ignore"):
        log_ratio = np.where(wrong, np.nan, prefill - decode)
        k3 = np.where(log_ratio == np.inf, np.inf, np.expm1(log_ratio) - log_ratio)
        return TokenScores(k1=-log_ratio, k2=log_ratio**2 / 2, k3=k3)


def score_label(temperature: float) -> Label:
    """What a mean of these scores may be called: an estimate of KL only for tokens drawn at temperature 1."""
    return "KL estimate" if temperature == 1.0 else "score"


def summarise(
    values: FloatArray, label: Label, threshold: float = SHARE_ABOVE, cap: float = CAP
) -> ScoreSummary:
    """Summary of one score [n].

    p95 and p99 are values that occurred (the higher of two neighbours). share_above counts
    |value| > threshold; the capped mean is of the values cut to [-cap, cap]. Raises ValueError for no tokens.
    """
    if values.size == 0:
        raise ValueError("no tokens to summarise")
    with np.errstate(invalid="ignore"):
        mean, median = float(np.mean(values)), float(np.median(values))
        p95, p99 = (float(np.quantile(values, level, method="higher")) for level in (0.95, 0.99))
    return ScoreSummary(
        label=label,
        n=values.size,
        nonfinite=int(np.count_nonzero(~np.isfinite(values))),
        mean=mean,
        median=median,
        p95=p95,
        p99=p99,
        threshold=threshold,
        share_above=float(np.mean(~(np.abs(values) <= threshold))),
        cap=cap,
        capped_mean=float(np.mean(np.clip(values, -cap, cap))),
    )
