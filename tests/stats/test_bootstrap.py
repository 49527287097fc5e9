"""Intervals of medians and ratios: closed forms, invariances, and how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.stats.bootstrap import RESAMPLES, median_interval, paired_ratio, ratio_of_means

positive = st.lists(st.floats(0.1, 100), min_size=3, max_size=12)


@given(positive, st.floats(0.1, 10))
@settings(max_examples=40, deadline=None)
def test_a_common_factor_is_the_ratio_however_the_prompts_differ(listed: list[float], factor: float) -> None:
    first = np.array(listed)
    for found in (paired_ratio(first, first * factor), ratio_of_means(first, first * factor)):
        assert found.n == first.size
        assert [found.value, found.low, found.high] == pytest.approx([factor] * 3)


@given(positive)
@settings(max_examples=40, deadline=None)
def test_the_limits_hold_the_estimate_and_stay_among_the_values(listed: list[float]) -> None:
    values = np.array(listed)
    found = median_interval(values)
    assert found.value == pytest.approx(np.median(values))
    assert values.min() <= found.low <= found.value <= found.high <= values.max()
    moved = median_interval(values + 3)
    assert [moved.low, moved.high] == pytest.approx([found.low + 3, found.high + 3])


def test_paired_ratio_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    first, second = np.array([1.0, 10.0, 100.0]), np.array([3.0, 11.0, 100.0])
    assert paired_ratio(first, second).value == pytest.approx(1.1)
    assert ratio_of_means(first, second).value == pytest.approx(114 / 111)


def test_three_values_in_closed_form() -> None:
    # Of 3 draws from 3 values, the median is the least one where two or three are: 7 of 27; so at the top.
    found = median_interval(np.array([1.0, 2.0, 4.0]))
    assert (found.low, found.value, found.high) == (1.0, 2.0, 4.0)
    narrow = median_interval(np.array([1.0, 2.0, 4.0]), confidence=0.4)
    assert (narrow.low, narrow.high) == (2.0, 2.0)  # 7/27 = 0.26 < 0.3
    assert RESAMPLES >= 999


def test_too_few_values_show_nothing() -> None:
    two = np.array([1.0, 2.0])
    assert (median_interval(two).low, median_interval(two).high) == (-math.inf, math.inf)
    assert (paired_ratio(two, two).low, paired_ratio(two, two).high) == (0.0, math.inf)
    none = paired_ratio(np.zeros(0), np.zeros(0))
    assert none.n == 0
    assert math.isnan(none.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_not_skipped(bad: float) -> None:
    values = np.array([1.0, 2.0, bad, 3.0])
    for found in (
        median_interval(values),
        paired_ratio(np.ones(4), values),
        ratio_of_means(np.ones(4), values),
    ):
        assert all(map(math.isnan, (found.value, found.low, found.high)))


def test_nothing_to_divide_by() -> None:
    assert math.isnan(ratio_of_means(np.zeros(4), np.ones(4)).value)
    assert math.isnan(paired_ratio(np.zeros(4), np.ones(4)).value)
    with pytest.raises(ValueError, match="differ in shape"):
        paired_ratio(np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match="differ in shape"):
        ratio_of_means(np.ones(2), np.ones(3))


def test_how_often_the_truth_is_covered() -> None:
    rng = np.random.default_rng(5)
    runs, covered = 300, {"median": 0, "ratio": 0, "means": 0}
    for run in range(runs):
        values = rng.normal(3.0, 1.0, 6)
        found = median_interval(values, seed=run)
        covered["median"] += found.low <= 3.0 <= found.high
        # Prompts of very different lengths: pairing must keep the interval as short as the noise.
        first = np.exp(rng.normal(0, 2.0, 6))
        found = paired_ratio(first, first * 1.2 * np.exp(rng.normal(0, 0.05, 6)), seed=run)
        covered["ratio"] += found.low <= 1.2 <= found.high
        assert found.high / found.low < 1.4
        found = ratio_of_means(rng.exponential(1, 30), rng.exponential(2, 30), seed=run)
        covered["means"] += found.low <= 2.0 <= found.high
    assert all(0.88 <= count / runs <= 0.99 for count in covered.values()), covered
