from __future__ import annotations

import math

import numpy as np
import pytest

from fidelity.stats.cells import (
    censoring_slack,
    elevated,
    paired_divergences,
    prompt_any,
    prompt_means,
    rate_evidence,
    shift_evidence,
)
from fidelity.stats.divergence import divergences
from fidelity.stats.topk import TopK, stack

NAN = float("nan")


def flags(bad: int, n: int) -> np.ndarray:
    return np.arange(n) < bad


def test_rate_evidence_of_a_default_plan() -> None:
    clean = rate_evidence(flags(0, 30), 0.10)
    assert clean.bounded
    assert not clean.exceeded
    assert (clean.bad, clean.n, clean.more_prompts) == (0, 30, 0)
    broken = rate_evidence(flags(30, 30), 0.10)
    assert broken.exceeded
    assert not broken.bounded
    assert broken.more_prompts is None
    undecided = rate_evidence(flags(1, 30), 0.10)
    assert not undecided.exceeded
    assert not undecided.bounded
    assert undecided.more_prompts == 46 - 30
    assert rate_evidence(flags(1, 46), 0.10).bounded
    assert not rate_evidence(flags(1, 45), 0.10).bounded


def test_six_prompts_bound_too_little() -> None:
    few = rate_evidence(flags(0, 6), 0.10)
    assert few.upper == pytest.approx(0.39, abs=5e-3)
    assert few.more_prompts == 23
    assert rate_evidence(flags(0, 0), 0.10).more_prompts == 29


def test_a_healthy_shift_is_bounded_and_a_biased_one_is_not() -> None:
    rng = np.random.default_rng(1)
    control = 1.2e-3 * rng.lognormal(0, 0.7, 30)
    healthy = shift_evidence(1.2e-3 * rng.lognormal(0, 0.7, 30), control)
    assert healthy.bounded
    assert healthy.p > 0.001
    assert healthy.margin == pytest.approx(3 * control.mean())
    assert healthy.more_prompts == 0
    biased = shift_evidence(5 * control, control)
    assert not biased.bounded
    assert biased.p == 2**-30
    assert biased.more_prompts is None
    assert biased.median_suspect == pytest.approx(5 * biased.median_control)
    assert biased.mean_difference == pytest.approx(4 * control.mean())


def test_a_server_without_any_noise_is_bounded() -> None:
    found = shift_evidence(np.zeros(30), np.zeros(30))
    assert (found.bounded, found.upper, found.margin, found.p) == (True, 0.0, 1e-3, 1.0)


def test_an_undecided_shift_says_how_many_prompts_would_decide() -> None:
    control = np.full(10, 1e-4)
    suspect = control + np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 4e-3])
    found = shift_evidence(suspect, control)
    assert not found.bounded
    spread = float((suspect - control).std(ddof=1))
    assert found.more_prompts == math.ceil((1.6449 * spread / (1e-3 - 4e-4)) ** 2) - 10


def test_a_missing_divergence_is_never_bounded() -> None:
    suspect = np.zeros(30)
    suspect[4] = NAN
    for found in (shift_evidence(suspect, np.zeros(30)), shift_evidence(np.zeros(30), suspect)):
        assert not found.bounded
        assert math.isnan(found.p)
        assert found.more_prompts is None
    empty = shift_evidence(np.zeros(0), np.zeros(0))
    assert (empty.bounded, empty.n, empty.p) == (False, 0, 1.0)
    with pytest.raises(ValueError, match="3 suspect prompts, 2 control"):
        shift_evidence(np.zeros(3), np.zeros(2))


def test_suspect_and_control_are_compared_over_the_same_ids(cold: TopK) -> None:
    suspect = TopK.of([7, 3], [math.log(0.7), math.log(0.2)])
    control = TopK.of([7, 5], [math.log(0.89), math.log(0.02)])
    left, right = paired_divergences(stack([cold]), stack([suspect]), stack([control]))
    assert (left.shared[0], right.shared[0]) == (1, 1)
    alone = divergences(stack([cold]), stack([suspect]))
    assert left.jsd_lower[0] < alone.jsd_lower[0]
    asked = TopK.of([7, 3, 5], [math.log(x) for x in (0.7, 0.2, 0.01)])
    asked_control = TopK.of([7, 3, 5], [math.log(x) for x in (0.89, 0.07, 0.02)])
    left, right = paired_divergences(
        stack([cold]), stack([suspect]), stack([control]), stack([asked]), stack([asked_control])
    )
    assert (left.shared[0], right.shared[0]) == (3, 3)
    assert left.jsd_lower[0] > alone.jsd_lower[0]


def test_censoring_slack(cold: TopK) -> None:
    found = divergences(stack([cold, cold]), stack([cold, cold]))
    assert censoring_slack(found) == pytest.approx(math.log(2) * 0.03)
    assert math.isnan(censoring_slack(divergences(stack([cold]), stack([None]))))


def test_elevated_hits() -> None:
    assert elevated(np.full(9, 0.02), np.full(9, 1e-4))
    assert not elevated(np.full(9, 0.009), np.zeros(9))
    assert not elevated(np.full(9, 0.02), np.full(9, 0.03))  # cold itself is as noisy
    assert elevated(np.full(9, 0.02), np.zeros(0))
    assert not elevated(np.zeros(0), np.zeros(9))
    assert elevated(np.full(9, NAN), np.zeros(9))
    outliers = np.zeros(9)
    outliers[:4] = 0.6
    assert not elevated(outliers, np.zeros(9))


def test_sends_are_folded_into_prompts() -> None:
    prompts = np.array([5, 2, 5, 2, 9])
    distinct, means = prompt_means(prompts, np.array([1.0, 2.0, 3.0, NAN, 7.0]))
    assert distinct.tolist() == [2, 5, 9]
    assert means == pytest.approx([NAN, 2.0, 7.0], nan_ok=True)
    distinct, bad = prompt_any(prompts, np.array([False, False, True, False, False]))
    assert distinct.tolist() == [2, 5, 9]
    assert bad.tolist() == [False, True, False]
