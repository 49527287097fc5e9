"""Rates of bad prompts: limits, comparisons, and how many prompts a claim needs.

The unit is the prompt, not the send: re-sends of one prompt are not independent (`design_effect`).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

Alternative = Literal["two-sided", "less", "greater"]


class Limits(NamedTuple):
    """Lower and upper limit of a rate (0..1) or of a difference of rates (-1..1)."""

    lower: float
    upper: float


def clopper_pearson(bad: int, n: int, confidence: float = 0.95) -> Limits:
    """Exact limits of a rate, each one-sided at `confidence`; both together hold at 2 * confidence - 1.

    lower = Beta(1 - confidence; bad, n - bad + 1), upper = Beta(confidence; bad + 1, n - bad) as quantiles
    (Clopper & Pearson 1934); for bad = 0 the upper is 1 - (1 - confidence)^(1/n), about 3/n at 95 %.
    n = 0 says nothing: (0, 1). Raises ValueError unless 0 <= bad <= n and 0 < confidence < 1.
    """
    _check(bad, n)
    _check_share(confidence)
    lower = 0.0 if bad == 0 else float(stats.beta.ppf(1 - confidence, bad, n - bad + 1))
    upper = 1.0 if bad == n else float(stats.beta.ppf(confidence, bad + 1, n - bad))
    return Limits(lower, upper)


def wilson(bad: int, n: int, confidence: float = 0.95) -> Limits:
    """Two-sided score interval of a rate (Wilson 1927): shorter, not conservative, for display only.

    Centre (x + z^2/2) / (n + z^2), half-width z sqrt(x (n - x) / n + z^2/4) / (n + z^2). n = 0 gives (0, 1).
    Raises ValueError unless 0 <= bad <= n and 0 < confidence < 1.
    """
    _check(bad, n)
    _check_share(confidence)
    if n == 0:
        return Limits(0.0, 1.0)
    z = float(stats.norm.ppf((1 + confidence) / 2))
    centre = (bad + z * z / 2) / (n + z * z)
    half = z * math.sqrt(bad * (n - bad) / n + z * z / 4) / (n + z * z)
    # At x = 0 and x = n one end is 0 or 1 exactly; rounding must not move it.
    return Limits(0.0 if bad == 0 else centre - half, 1.0 if bad == n else centre + half)


def newcombe(bad_a: int, n_a: int, bad_b: int, n_b: int, confidence: float = 0.95) -> Limits:
    """Two-sided interval of rate a - rate b, two independent groups (Newcombe 1998, method 10).

    With Wilson limits (l, u): a - b -/+ sqrt((a - l_a)^2 + (u_b - b)^2) and sqrt((u_a - a)^2 + (b - l_b)^2).
    Raises ValueError on impossible counts; an empty group gives (-1, 1).
    """
    a, b = wilson(bad_a, n_a, confidence), wilson(bad_b, n_b, confidence)
    if n_a == 0 or n_b == 0:
        return Limits(-1.0, 1.0)
    rate_a, rate_b = bad_a / n_a, bad_b / n_b
    difference = rate_a - rate_b
    return Limits(
        difference - math.hypot(rate_a - a.lower, b.upper - rate_b),
        difference + math.hypot(a.upper - rate_a, rate_b - b.lower),
    )


def mcnemar(only_suspect: int, only_control: int, alternative: Alternative = "greater") -> float:
    """Exact p that suspect and control are bad equally often, paired by prompt (McNemar 1947, binomial form).

    The arguments count the prompts bad in one cell only; "greater": the suspect is bad more often. No such
    prompts: 1. Raises ValueError on negative counts.
    """
    _check(only_suspect, only_suspect + only_control)
    if only_suspect + only_control == 0:
        return 1.0
    return float(stats.binomtest(only_suspect, only_suspect + only_control, 0.5, alternative).pvalue)


def fisher(bad_a: int, n_a: int, bad_b: int, n_b: int, alternative: Alternative = "greater") -> float:
    """Exact p that two unpaired groups have one rate (Fisher 1935); "greater": a is bad more often.

    Raises ValueError on impossible counts.
    """
    _check(bad_a, n_a)
    _check(bad_b, n_b)
    table = np.array([[bad_a, n_a - bad_a], [bad_b, n_b - bad_b]])
    return float(stats.fisher_exact(table, alternative=alternative).pvalue)


def design_effect(sends: float, correlation: float) -> float:
    """Inflation of a variance by several sends of each prompt: 1 + (sends - 1) * correlation (Kish 1965).

    n sends are worth n / design_effect independent ones; at correlation 1 a prompt counts once however often
    it is sent. Raises ValueError unless sends >= 1 and 0 <= correlation <= 1.
    """
    if not (sends >= 1 and 0 <= correlation <= 1):
        raise ValueError(f"expected sends >= 1 and a correlation in [0, 1], got {sends} and {correlation}")
    return 1 + (sends - 1) * correlation


def prompts_needed(rate: float, confidence: float = 0.95, allowed_bad: int = 0) -> int:
    """Fewest prompts whose upper limit (`clopper_pearson`) is at most `rate` with `allowed_bad` bad ones.

    That is the least n with P(X <= allowed_bad | n, rate) <= 1 - confidence: 29, 59, 149, 299 for 10, 5, 2
    and 1 % at 95 % and none bad (Hanley & Lippman-Hand 1983). Raises ValueError unless 0 < rate < 1.
    """
    _check_share(rate)
    _check_share(confidence)
    _check(allowed_bad, allowed_bad)
    # P falls as n grows: double until it is small enough, then halve the bracket.
    too_few, enough = allowed_bad, allowed_bad + 1
    while stats.binom.cdf(allowed_bad, enough, rate) > 1 - confidence:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if stats.binom.cdf(allowed_bad, middle, rate) > 1 - confidence:
            too_few = middle
        else:
            enough = middle
    return enough


def bad_needed(n: int, rate: float, confidence: float = 0.95) -> int | None:
    """Fewest bad prompts of n whose lower limit (`clopper_pearson`) is above `rate`; None when n are too few.

    Raises ValueError unless n >= 0 and 0 < rate < 1.
    """
    _check_share(rate)
    _check(0, n)
    return next((bad for bad in range(1, n + 1) if clopper_pearson(bad, n, confidence).lower > rate), None)


def detection_power(n: int, rate: float, bad: int = 1) -> float:
    """Probability that at least `bad` of n prompts come out bad when each does with probability `rate`."""
    _check(0, n)
    return float(stats.binom.sf(bad - 1, n, rate))


def detectable_rate(n: int, power: float = 0.95, bad: int = 1) -> float:
    """Smallest true rate at which at least `bad` of n prompts come out bad with probability `power`.

    The quantile Beta(power; bad, n - bad + 1); for bad = 1 it is 1 - (1 - power)^(1/n). With fewer than `bad`
    prompts no rate is enough: NaN. Raises ValueError unless bad >= 1 and 0 < power < 1.
    """
    _check_share(power)
    if bad < 1:
        raise ValueError(f"expected at least one bad prompt to detect, got {bad}")
    return float(stats.beta.ppf(power, bad, n - bad + 1))


def _check(bad: int, n: int) -> None:
    if not 0 <= bad <= n:
        raise ValueError(f"expected 0 <= bad <= n, got {bad} of {n}")


def _check_share(value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"expected a share between 0 and 1, both excluded, got {value}")
