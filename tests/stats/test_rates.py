from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fidelity.stats.rates import (
    Limits,
    bad_needed,
    clopper_pearson,
    design_effect,
    detectable_rate,
    detection_power,
    fisher,
    mcnemar,
    newcombe,
    prompts_needed,
    wilson,
)

counted = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counted, st.sampled_from([0.9, 0.95, 0.999]))
@settings(max_examples=100, deadline=None)
def test_clopper_pearson_is_where_the_binomial_tail_is_one_minus_confidence(
    counts: tuple[int, int], confidence: float
) -> None:
    bad, n = counts
    limits = clopper_pearson(bad, n, confidence)
    if bad < n:
        assert stats.binom.cdf(bad, n, limits.upper) == pytest.approx(1 - confidence)
    if bad > 0:
        assert stats.binom.sf(bad - 1, n, limits.lower) == pytest.approx(1 - confidence)
    exact = stats.binomtest(bad, n).proportion_ci(2 * confidence - 1, "exact")
    assert limits == pytest.approx((exact.low, exact.high))
    assert limits.lower <= bad / n <= limits.upper


def test_clopper_pearson_of_the_two_threads() -> None:
    assert clopper_pearson(0, 40).upper == pytest.approx(0.072, abs=5e-4)
    assert clopper_pearson(24, 24).lower == pytest.approx(0.88, abs=5e-3)
    assert clopper_pearson(0, 6).upper == pytest.approx(0.39, abs=5e-3)
    assert clopper_pearson(0, 300).upper == pytest.approx(1 - 0.05 ** (1 / 300))
    assert clopper_pearson(0, 0) == Limits(0.0, 1.0)
    assert clopper_pearson(0, 5).lower == 0.0
    assert clopper_pearson(5, 5).upper == 1.0


@given(counted, st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=50, deadline=None)
def test_wilson_equals_scipy(counts: tuple[int, int], confidence: float) -> None:
    bad, n = counts
    want = stats.binomtest(bad, n).proportion_ci(confidence, "wilson")
    assert wilson(bad, n, confidence) == pytest.approx((want.low, want.high), abs=1e-12)


def test_wilson_at_the_ends() -> None:
    for n in range(1, 200):
        assert wilson(0, n).lower == 0.0
        assert wilson(n, n).upper == 1.0
    assert wilson(0, 0) == Limits(0.0, 1.0)


@pytest.mark.parametrize(
    ("bad_a", "n_a", "bad_b", "n_b", "limits"),
    [  # Newcombe 1998, table II, method 10
        (56, 70, 48, 80, (0.0524, 0.3339)),
        (9, 10, 3, 10, (0.1705, 0.8090)),
        (5, 56, 0, 29, (-0.0381, 0.1926)),
        (0, 10, 0, 20, (-0.1611, 0.2775)),
        (10, 10, 0, 20, (0.6791, 1.0)),
    ],
)
def test_newcombe_reference_values(
    bad_a: int, n_a: int, bad_b: int, n_b: int, limits: tuple[float, float]
) -> None:
    assert newcombe(bad_a, n_a, bad_b, n_b) == pytest.approx(limits, abs=1e-4)


def test_newcombe_says_nothing_of_an_empty_group_and_turns_with_its_arguments() -> None:
    assert newcombe(0, 0, 3, 10) == Limits(-1.0, 1.0)
    forth, back = newcombe(2, 200, 1, 150), newcombe(1, 150, 2, 200)
    assert forth.lower == pytest.approx(-back.upper)


def test_mcnemar_exact() -> None:
    assert mcnemar(10, 2, "two-sided") == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert mcnemar(10, 2) == pytest.approx((1 + 12 + 66) / 4096)
    assert mcnemar(2, 10) == pytest.approx(1 - (1 + 12) / 4096)
    assert mcnemar(6, 0) == 2**-6
    assert mcnemar(0, 0) == 1.0


def test_fisher_exact() -> None:
    assert fisher(3, 4, 1, 4) == pytest.approx(17 / 70)  # the lady tasting tea
    assert fisher(3, 4, 1, 4, "two-sided") == pytest.approx(34 / 70)
    assert fisher(1, 4, 3, 4) == pytest.approx(69 / 70)
    # 0 of 40 re-sends agree against 40 of 40
    assert fisher(40, 40, 0, 40, "two-sided") == pytest.approx(2 / math.comb(80, 40))


def test_design_effect() -> None:
    assert design_effect(1, 0.7) == 1.0
    assert design_effect(4, 0.0) == 1.0
    assert design_effect(4, 1.0) == 4.0
    assert design_effect(4, 0.5) == 2.5
    for sends, correlation in ((0, 0.5), (4, -0.1), (4, 1.1), (4, math.nan)):
        with pytest.raises(ValueError, match="expected sends"):
            design_effect(sends, correlation)


@pytest.mark.parametrize(
    ("rate", "allowed_bad", "n"),
    [
        (0.10, 0, 29),
        (0.05, 0, 59),
        (0.02, 0, 149),
        (0.01, 0, 299),
        (0.05, 1, 93),
        (0.02, 1, 236),
        (0.01, 1, 473),
        (0.05, 2, 124),
        (0.02, 2, 313),
        (0.01, 2, 628),
    ],
)
def test_prompts_needed_equal_the_tables(rate: float, allowed_bad: int, n: int) -> None:
    assert prompts_needed(rate, 0.95, allowed_bad) == n


@given(st.floats(0.005, 0.9), st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_prompts_needed_is_the_least_that_is_enough(rate: float, confidence: float, bad: int) -> None:
    n = prompts_needed(rate, confidence, bad)
    assert clopper_pearson(bad, n, confidence).upper <= rate + 1e-9
    assert n == bad + 1 or clopper_pearson(bad, n - 1, confidence).upper > rate - 1e-9


def test_bad_needed_is_the_least_that_exceeds() -> None:
    for n in (5, 30, 60):
        bad = bad_needed(n, 0.1)
        assert bad is not None
        assert clopper_pearson(bad, n).lower > 0.1
        assert clopper_pearson(bad - 1, n).lower <= 0.1
    assert bad_needed(30, 0.1) == 7
    assert bad_needed(1, 0.1) is None
    assert bad_needed(0, 0.1) is None


def test_power_and_the_smallest_rate_seen() -> None:
    assert detection_power(60, 0.01) == pytest.approx(0.45, abs=0.01)
    assert detection_power(60, 0.05) == pytest.approx(0.95, abs=0.01)
    assert detection_power(150, 0.01) == pytest.approx(0.78, abs=0.01)
    assert detection_power(300, 0.01) == pytest.approx(0.95, abs=0.01)
    assert detectable_rate(30) == pytest.approx(1 - 0.05 ** (1 / 30))
    for n, power, bad in ((30, 0.95, 1), (60, 0.8, 5), (7, 0.95, 7)):
        assert detection_power(n, detectable_rate(n, power, bad), bad) == pytest.approx(power)
    assert math.isnan(detectable_rate(3, 0.95, 4))
    assert math.isnan(detectable_rate(0))


def test_impossible_counts_and_shares_raise() -> None:
    for call in (
        lambda: clopper_pearson(3, 2),
        lambda: clopper_pearson(-1, 2),
        lambda: wilson(3, 2),
        lambda: newcombe(1, 2, 3, 2),
        lambda: mcnemar(-1, 2),
        lambda: mcnemar(1, -1),
        lambda: fisher(3, 2, 0, 2),
        lambda: prompts_needed(0.1, 0.95, -1),
        lambda: bad_needed(-1, 0.1),
        lambda: detection_power(-1, 0.1),
    ):
        with pytest.raises(ValueError, match="expected 0 <= bad <= n"):
            call()
    for call in (
        lambda: prompts_needed(0.0),
        lambda: prompts_needed(1.0),
        lambda: clopper_pearson(0, 5, 1.0),
        lambda: wilson(0, 5, 0.0),
        lambda: detectable_rate(5, math.nan),
        lambda: bad_needed(5, 0.0),
    ):
        with pytest.raises(ValueError, match="expected a share"):
            call()
    with pytest.raises(ValueError, match="at least one bad"):
        detectable_rate(5, 0.95, 0)
