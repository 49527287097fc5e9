"""The figures that a verdict on one cell rests on, from arrays with one entry per prompt.

A cell here is a suspect path held against its control, the same prompts in both. Only prompts whose hits were
proven belong in the arrays. What follows from the figures is not decided here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from fidelity.stats.divergence import Divergences, divergences
from fidelity.stats.equivalence import KAPPA, LEAST_MARGIN, margin, non_inferior, sign_flip
from fidelity.stats.rates import clopper_pearson, prompts_needed
from fidelity.stats.topk import BoolArray, FloatArray, IntArray, TopK, merge

ELEVATED = 0.01
"""Median JSD (nats) of control hits from cold that calls for an explanation."""


@dataclass(frozen=True)
class RateEvidence:
    """Corrupt prompts of n against the largest rate allowed; limits are one-sided Clopper-Pearson.

    exceeded: the lower limit is above it. bounded: the upper limit is not. more_prompts: how many more, none
    of them corrupt, would bound it; 0 when it is bounded, None when it is exceeded.
    """

    n: int
    bad: int
    lower: float
    upper: float
    max_rate: float
    exceeded: bool
    bounded: bool
    more_prompts: int | None


@dataclass(frozen=True)
class ShiftEvidence:
    """JSD of suspect hits against that of control hits, paired by prompt; nats but for p and the counts.

    p: sign-flip p that the suspect's mean is not above the control's, to be Holm-corrected over the run.
    upper: upper limit of the mean difference. bounded: it is below the margin. more_prompts: how many more
    would bring the limit to the margin if mean and spread stay; 0 when bounded, None when no number would.
    """

    n: int
    median_suspect: float
    median_control: float
    mean_difference: float
    p: float
    upper: float
    margin: float
    bounded: bool
    more_prompts: int | None


def rate_evidence(corrupt: BoolArray, max_rate: float, confidence: float = 0.95) -> RateEvidence:
    """Evidence on the rate of corrupt prompts [n] against `max_rate` (0..1, both excluded)."""
    n, bad = corrupt.size, int(np.count_nonzero(corrupt))
    limits = clopper_pearson(bad, n, confidence)
    exceeded, bounded = limits.lower > max_rate, limits.upper <= max_rate
    more = None if exceeded else 0 if bounded else prompts_needed(max_rate, confidence, bad) - n
    return RateEvidence(n, bad, limits.lower, limits.upper, max_rate, exceeded, bounded, more)


def shift_evidence(
    suspect: FloatArray,
    control: FloatArray,
    kappa: float = KAPPA,
    least: float = LEAST_MARGIN,
    confidence: float = 0.95,
    seed: int = 0,
) -> ShiftEvidence:
    """Evidence on the size of the shift, from the `jsd_lower` of suspect and control, one a prompt [n].

    Both against cold and over the same ids (`paired_divergences`). The control floor of the margin is the
    control's mean, as the limit is on a mean. No prompts show nothing. Raises ValueError when the two are not
    of one length.
    """
    if suspect.shape != control.shape:
        raise ValueError(f"{suspect.size} suspect prompts, {control.size} control prompts")
    n = suspect.size
    if n == 0:
        nan = math.nan
        return ShiftEvidence(0, nan, nan, nan, 1.0, math.inf, nan, False, None)
    differences = suspect - control
    delta = margin(float(control.mean()), kappa, least)
    test = non_inferior(differences, delta, confidence, seed)
    return ShiftEvidence(
        n=n,
        median_suspect=float(np.median(suspect)),
        median_control=float(np.median(control)),
        mean_difference=float(differences.mean()),
        p=sign_flip(differences, seed).p,
        upper=test.upper,
        margin=delta,
        bounded=test.shown,
        more_prompts=0 if test.shown else _more_pairs(differences, delta, confidence),
    )


def _more_pairs(differences: FloatArray, delta: float, confidence: float) -> int | None:
    """From the normal limit mean + z sd / sqrt(n) = delta, at least one more and three in all."""
    n = differences.size
    room = delta - float(differences.mean())
    if n < 2 or not room > 0:
        return None
    needed = (float(special.ndtri(confidence)) * float(differences.std(ddof=1)) / room) ** 2
    return max(math.ceil(needed), n + 1, 3) - n


def paired_divergences(
    cold: TopK,
    suspect: TopK,
    control: TopK,
    suspect_asked: TopK | None = None,
    control_asked: TopK | None = None,
) -> tuple[Divergences, Divergences]:
    """Divergences of suspect and of control from cold, n rows each, over the same ids in both.

    A lower bound grows with the ids it rests on: over different ids the two would not be comparable.
    """
    suspect_ids = suspect.ids if suspect_asked is None else merge(suspect, suspect_asked).ids
    control_ids = control.ids if control_asked is None else merge(control, control_asked).ids
    return (
        divergences(cold, suspect, q_asked=suspect_asked, over=control_ids),
        divergences(cold, control, q_asked=control_asked, over=suspect_ids),
    )


def censoring_slack(found: Divergences) -> float:
    """Median width of the JSD intervals, in nats: what the ids left untold can hide. NaN when any is NaN."""
    return float(np.median(found.jsd_upper - found.jsd_lower))


def elevated(control: FloatArray, floor: FloatArray, limit: float = ELEVATED) -> bool:
    """Whether control hits as a whole are far from cold: their median JSD is above `limit` and the floor's.

    control: JSD of control hits from cold [n]; floor: JSD of cold from cold [m], both in nats; no floor is 0.
    A shift shared by suspect and control cancels in their difference and shows only here. A NaN median counts
    as elevated; no control hits are not.
    """
    if control.size == 0:
        return False
    median = float(np.median(control))
    median_floor = float(np.median(floor)) if floor.size else 0.0
    return not (median <= limit or median <= median_floor)


def prompt_means(prompts: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """The distinct prompts of some sends, ascending, and the mean of the sends' values for each.

    A NaN makes its own prompt's mean NaN.
    """
    distinct, at = np.unique(prompts, return_inverse=True)
    return distinct, np.bincount(at, weights=values) / np.bincount(at)


def prompt_any(prompts: IntArray, flags: BoolArray) -> tuple[IntArray, BoolArray]:
    """The distinct prompts of some sends, ascending, and whether any send of each is flagged."""
    distinct, at = np.unique(prompts, return_inverse=True)
    return distinct, np.bincount(at, weights=flags) > 0
