"""Is the suspect worse than the control, and if not, is it shown to be no worse by more than a margin?

Everything is paired by prompt: a difference is suspect minus control of one prompt, in nats where it is of
divergences. A NaN among the inputs gives NaN or "not shown", never a figure from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from fidelity.stats.topk import FloatArray, IntArray

EXACT_UP_TO = 32
"""Differences up to which all sign patterns are counted (two halves of at most 2^16 sums each)."""

RESAMPLES = 99_999
"""Sign patterns drawn above that: the smallest p is 1e-5, small enough for Holm over 100 cells at 0.001."""

BOOTSTRAP_RESAMPLES = 9_999
KAPPA = 3.0
LEAST_MARGIN = 1e-3

_CHUNK = 4_000_000  # random numbers held at once
_BLOCK = 12  # differences whose sign patterns are tabulated together


@dataclass(frozen=True)
class SignFlip:
    """p: one-sided, of a mean this large by symmetric noise. exact: all sign patterns were counted."""

    n: int
    p: float
    exact: bool


@dataclass(frozen=True)
class NonInferiority:
    """upper: one-sided upper limit of the mean difference; shown: it is below the margin. In nats."""

    n: int
    upper: float
    margin: float
    shown: bool


def sign_flip(differences: FloatArray, seed: int = 0, resamples: int = RESAMPLES) -> SignFlip:
    """Permutation test that the mean difference [n] is above 0, flipping the sign of each pair (Fisher 1935).

    If suspect and control are interchangeable within a pair, each sign is as likely as the other. p is the
    share of the 2^n patterns whose sum reaches the observed one, so at least 1/2^n; above `EXACT_UP_TO` pairs
    it is (1 + b) / (1 + B) over B seeded random patterns, never 0 (Phipson & Smyth 2010). n = 0 gives 1, a
    difference that is not finite gives NaN.
    """
    n = differences.size
    if not np.all(np.isfinite(differences)):
        return SignFlip(n=n, p=math.nan, exact=False)
    # Flipping keeps the sum at or above the total T exactly when the pairs kept positive sum to T or more.
    # The slack counts patterns that tie with the observed one but for rounding.
    target = float(differences.sum()) - 1e-12 * float(np.abs(differences).sum())
    if n <= EXACT_UP_TO:
        left = _subset_sums(differences[: n // 2])
        right = np.sort(_subset_sums(differences[n // 2 :]))
        reached = right.size * left.size - int(np.searchsorted(right, target - left).sum())
        return SignFlip(n=n, p=reached / 2**n, exact=True)
    blocks = np.array_split(differences, -(-n // _BLOCK))
    sums = np.zeros(resamples)
    for block, patterns in zip(blocks, _sign_patterns(n, resamples, seed), strict=True):
        sums += _subset_sums(block)[patterns]
    beyond = int(np.count_nonzero(sums >= target))
    return SignFlip(n=n, p=(1 + beyond) / (1 + resamples), exact=False)


@lru_cache(maxsize=1)
def _sign_patterns(n: int, resamples: int, seed: int) -> list[IntArray]:
    """For each block of n differences, one of its sign patterns per resample. Kept, as all cells of a run ask
    for the same."""
    rng = np.random.default_rng(seed)
    sizes = [block.size for block in np.array_split(np.arange(n), -(-n // _BLOCK))]
    return [rng.integers(0, 2**size, size=resamples) for size in sizes]


def _subset_sums(values: FloatArray) -> FloatArray:
    """The sum of each of the 2^n subsets of n values."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def upper_limit(
    values: FloatArray, confidence: float = 0.95, seed: int = 0, resamples: int = BOOTSTRAP_RESAMPLES
) -> float:
    """One-sided upper limit of the mean of `values` [n] by the BCa bootstrap (Efron 1987).

    The limit is the quantile Phi(z0 + (z0 + z) / (1 - a (z0 + z))) of the resampled means, where
    z = Phi^-1(confidence), z0 = Phi^-1(share of them below the mean, ties half) and
    a = sum d^3 / (6 (sum d^2)^1.5), d being the values minus their mean (the jackknife's, but for a factor).
    By rule: a value that is not finite gives NaN; fewer than 3 values give +inf (nothing is shown); all equal
    give that value; a formula past its pole gives the largest resampled mean.
    """
    n = values.size
    if not np.all(np.isfinite(values)):
        return math.nan
    if n < 3:
        return math.inf
    if np.all(values == values[0]):
        return float(values[0])
    means = np.concatenate([values[drawn].mean(axis=1) for drawn in _draws(n, resamples, seed)])
    mean = float(values.mean())
    below = (np.count_nonzero(means < mean) + 0.5 * np.count_nonzero(means == mean)) / resamples
    # A share of 0 or 1 would put z0 at infinity; it is known only to one part in the resamples anyway.
    z0 = float(special.ndtri(np.clip(below, 0.5 / resamples, 1 - 0.5 / resamples)))
    deviations = values - mean
    acceleration = float((deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5))
    shifted = z0 + float(special.ndtri(confidence))
    pole = 1 - acceleration * shifted
    level = float(special.ndtr(z0 + shifted / pole)) if pole > 0 else 1.0
    return float(np.quantile(means, level, method="higher"))


def _draws(n: int, resamples: int, seed: int) -> Iterable[IntArray]:
    """`resamples` samples of n indices with replacement, in blocks of rows that fit in memory."""
    rows = max(1, _CHUNK // n)
    if rows >= resamples:
        return (_sample(n, resamples, seed),)
    rng = np.random.default_rng(seed)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return (rng.integers(0, n, size=(size, n)) for size in sizes)


@lru_cache(maxsize=1)
def _sample(n: int, resamples: int, seed: int) -> IntArray:
    """One block of draws. Kept, as all cells of a run ask for the same."""
    return np.random.default_rng(seed).integers(0, n, size=(resamples, n))


def margin(control_floor: float, kappa: float = KAPPA, least: float = LEAST_MARGIN) -> float:
    """delta = max(kappa * control floor, least), in nats: what the suspect may exceed the control by.

    The least margin keeps a control of exactly 0 from asking for the impossible. A floor that is NaN or
    negative gives NaN.
    """
    return max(kappa * control_floor, least) if control_floor >= 0 else math.nan


def non_inferior(
    differences: FloatArray, delta: float, confidence: float = 0.95, seed: int = 0
) -> NonInferiority:
    """Whether the mean of paired differences [n] is shown to be below the margin `delta`.

    The upper half of two one-sided tests (Schuirmann 1987), by the limit of `upper_limit`.
    """
    upper = upper_limit(differences, confidence, seed)
    return NonInferiority(n=differences.size, upper=upper, margin=delta, shown=bool(upper < delta))


def rank_p(observed: float, floor: FloatArray) -> float:
    """Rank of one observed value among m floor values: (1 + #{floor >= observed}) / (m + 1).

    For display only: a healthy hit runs other kernels than a cold prefill, so it ranks high without a fault.
    A floor value that is NaN counts as reaching the observed one; an observed NaN gives NaN.
    """
    if math.isnan(observed):
        return math.nan
    return (1 + int(np.count_nonzero(~(floor < observed)))) / (floor.size + 1)


def holm(p_values: FloatArray) -> FloatArray:
    """Adjusted p of each of m tests, in the order given: reject where <= alpha, whatever their dependence.

    The i-th smallest is max over j <= i of (m - j + 1) p_(j), at most 1 (Holm 1979). A NaN counts in m and
    stays NaN: it is never a rejection.
    """
    m = p_values.size
    order = np.argsort(p_values)  # NaN last
    steps = (m - np.arange(m)) * p_values[order]
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def benjamini_hochberg(p_values: FloatArray) -> FloatArray:
    """Adjusted p of each of m tests for the false discovery rate; for the exploratory map of tails only.

    The i-th smallest is min over j >= i of m p_(j) / j, at most 1 (Benjamini & Hochberg 1995). A NaN counts
    in m and stays NaN.
    """
    m = p_values.size
    order = np.argsort(p_values)  # NaN last
    steps = m * p_values[order] / np.arange(1, m + 1)
    adjusted = np.empty(m)
    # From the largest p down; fmin leaves the NaN at the end behind.
    adjusted[order] = np.minimum(1.0, np.fmin.accumulate(steps[::-1])[::-1])
    return adjusted
