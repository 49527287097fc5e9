from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fidelity.stats.equivalence import (
    EXACT_UP_TO,
    benjamini_hochberg,
    holm,
    margin,
    non_inferior,
    rank_p,
    sign_flip,
    upper_limit,
)

NAN, INF = float("nan"), float("inf")
values = st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=1, max_size=9)


@given(values)
@settings(max_examples=80, deadline=None)
def test_sign_flip_equals_enumeration(listed: list[float]) -> None:
    d = np.array(listed)
    patterns = np.array(list(itertools.product([1, -1], repeat=d.size)))
    want = np.mean(patterns @ d >= d.sum() - 1e-9)
    found = sign_flip(d)
    assert found.exact
    assert found.p == pytest.approx(want)


def test_sign_flip_equals_scipy() -> None:
    d = np.random.default_rng(2).normal(0.3, 1, 12)
    want = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", alternative="greater", n_resamples=math.inf
    )
    assert sign_flip(d).p == pytest.approx(want.pvalue)


def test_sign_flip_smallest_and_degenerate_p() -> None:
    assert sign_flip(np.ones(5)).p == 2**-5
    assert sign_flip(np.full(30, 0.1)).p == 2**-30
    assert sign_flip(-np.ones(5)).p == 1.0
    assert sign_flip(np.zeros(8)).p == 1.0
    assert sign_flip(np.zeros(100)).p == 1.0
    assert sign_flip(np.zeros(0)).p == 1.0
    for bad in (NAN, INF, -INF):
        assert math.isnan(sign_flip(np.array([0.1, bad, 0.2])).p)


def test_sign_flip_counts_ties_in_spite_of_rounding() -> None:
    # 0.1 + 0.2 - 0.3 is 2.8e-17, not 0: every pattern that sums to the observed 0.6 must count.
    d = np.array([0.1, 0.2, 0.3])
    assert sign_flip(np.concatenate([d, -d])).p == pytest.approx(
        np.mean([s @ np.r_[d, -d] >= -1e-9 for s in np.array(list(itertools.product([1, -1], repeat=6)))])
    )


def test_drawn_patterns_agree_with_all_patterns() -> None:
    d = np.random.default_rng(3).normal(0.25, 1, EXACT_UP_TO)
    exact = sign_flip(d)
    # Zeros change nothing but the number of pairs.
    drawn = sign_flip(np.concatenate([d, np.zeros(1)]))
    assert exact.exact
    assert not drawn.exact
    assert drawn.p == pytest.approx(exact.p, abs=5 * math.sqrt(exact.p / 99_999))


def test_drawn_p_is_never_zero_and_repeats_with_its_seed() -> None:
    sure = np.ones(100)
    assert sign_flip(sure).p == 1 / 100_000
    assert sign_flip(sure, resamples=999).p == 1 / 1000
    d = np.random.default_rng(4).normal(0.1, 1, 60)
    assert sign_flip(d, seed=1) == sign_flip(d, seed=1)
    assert sign_flip(d, seed=1).p != sign_flip(d, seed=2).p


def test_sign_flip_holds_its_level() -> None:
    rng = np.random.default_rng(6)
    rejected = sum(sign_flip(rng.standard_t(2, size=12)).p <= 0.05 for _ in range(1000))
    assert rejected <= 50 + 3 * math.sqrt(1000 * 0.05 * 0.95)
    assert sum(sign_flip(rng.normal(1.5, 1, size=12)).p <= 0.05 for _ in range(100)) > 95


@pytest.mark.parametrize("kind", ["normal", "exponential", "two values"])
@pytest.mark.parametrize("seed", range(2))
def test_upper_limit_equals_scipy(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = {"normal": rng.normal(0, 1, 25), "exponential": rng.exponential(1, 25)}
    # Of two values, a tenth of the resampled means tie with the mean.
    sample = drawn.get(kind, np.arange(25) % 3 == 0).astype(float)
    want = stats.bootstrap(
        (sample,), np.mean, confidence_level=0.95, alternative="less", method="BCa", n_resamples=40_000,
        random_state=np.random.default_rng(seed),
    )  # fmt: skip
    error = sample.std() / 5
    got = upper_limit(sample, 0.95, seed, resamples=40_000)
    assert got == pytest.approx(want.confidence_interval.high, abs=0.03 * error)
    assert got > sample.mean() + error


def test_upper_limit_grows_with_confidence_and_covers() -> None:
    rng = np.random.default_rng(8)
    sample = rng.normal(0, 1, 20)
    assert upper_limit(sample, 0.8) < upper_limit(sample, 0.95) < upper_limit(sample, 0.999)
    covered = sum(upper_limit(rng.normal(0, 1, 30), 0.95, resamples=999) >= 0 for _ in range(400))
    assert 0.90 <= covered / 400 <= 0.98


def test_upper_limit_of_degenerate_input_is_by_rule() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert upper_limit(np.full(30, 0.1)) == 0.1
    assert upper_limit(np.zeros(30)) == 0.0
    assert upper_limit(np.zeros(0)) == upper_limit(np.zeros(2)) == INF
    for bad in (NAN, INF, -INF):
        assert math.isnan(upper_limit(np.array([0.0, 1.0, 2.0, bad])))


def test_upper_limit_of_one_outlier_is_finite_and_above_the_mean() -> None:
    sample = np.zeros(30)
    sample[0] = 20.0
    limit = upper_limit(sample)
    assert sample.mean() < limit <= 20.0
    assert upper_limit(-sample) <= 0.0


def test_margin() -> None:
    assert margin(0.01) == pytest.approx(0.03)
    assert margin(0.01, kappa=2) == pytest.approx(0.02)
    assert margin(0.0) == 1e-3
    assert margin(1e-4) == 1e-3
    assert math.isnan(margin(NAN))
    assert math.isnan(margin(-0.1))
    assert margin(INF) == INF


def test_non_inferior() -> None:
    rng = np.random.default_rng(9)
    d = rng.normal(0, 1e-3, 40)
    found = non_inferior(d, 2e-3)
    assert found.shown
    assert (found.n, found.margin, found.upper) == (40, 2e-3, upper_limit(d))
    assert not non_inferior(d + 2e-3, 2e-3).shown
    assert non_inferior(np.zeros(30), 1e-3).shown
    assert not non_inferior(np.full(30, 1e-3), 1e-3).shown  # at the margin is not below it
    assert not non_inferior(np.zeros(2), 1e-3).shown
    assert not non_inferior(np.array([0.0, NAN, 0.0, 0.0]), 1e-3).shown
    assert not non_inferior(d, NAN).shown


def test_rank_p() -> None:
    floor = np.arange(19.0)
    assert rank_p(100.0, floor) == 0.05
    assert rank_p(18.0, floor) == 0.1
    assert rank_p(-1.0, floor) == 1.0
    assert rank_p(1.0, np.zeros(0)) == 1.0
    assert rank_p(100.0, np.array([0.0, NAN])) == pytest.approx(2 / 3)
    assert math.isnan(rank_p(NAN, floor))
    assert rank_p(INF, floor) == 0.05


def test_holm_of_a_textbook_family() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])) == pytest.approx([1.0, 1.0])
    assert holm(np.zeros(0)).size == 0
    assert holm(np.array([0.02])) == pytest.approx([0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_holm_rejects_what_the_step_down_procedure_rejects(listed: list[float]) -> None:
    p = np.array(listed)
    adjusted = holm(p)
    for alpha in (0.001, 0.05, 0.3):
        rejected = set()
        for step, i in enumerate(np.argsort(p)):
            if p[i] * (p.size - step) > alpha:
                break
            rejected.add(int(i))
        assert set(np.flatnonzero(adjusted <= alpha).tolist()) == rejected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_benjamini_hochberg_equals_scipy(listed: list[float]) -> None:
    p = np.array(listed)
    assert benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p))


def test_a_missing_p_counts_in_the_family_and_is_never_a_rejection() -> None:
    p = np.array([0.01, NAN, 0.02])
    assert holm(p) == pytest.approx([0.03, NAN, 0.04], nan_ok=True)
    assert benjamini_hochberg(p) == pytest.approx([0.03, NAN, 0.03], nan_ok=True)
