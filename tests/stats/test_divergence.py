from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from fidelity.stats.divergence import Divergences, divergence, divergences, js
from fidelity.stats.topk import TopK, stack

Pairs = Callable[..., Any]
LN2 = math.log(2)
INF = float("inf")


def brute_force(p: dict[int, float], q: dict[int, float]) -> tuple[float, float, float, float, float]:
    """The five figures from the definitions, with explicit merged vectors."""
    both = sorted(p.keys() & q.keys())
    merged_p = [p[i] for i in both] + [1 - sum(p[i] for i in both)]
    merged_q = [q[i] for i in both] + [1 - sum(q[i] for i in both)]
    inside = sum(
        0.5 * (p[i] * math.log(2 * p[i] / (p[i] + q[i])) + q[i] * math.log(2 * q[i] / (p[i] + q[i])))
        for i in both
    )
    upper = min(LN2, inside + LN2 / 2 * (merged_p[-1] + merged_q[-1]))
    return (
        float(rel_entr(merged_p, merged_q).sum()),
        sum(p.values()),
        sum(q.values()),
        float(jensenshannon(merged_p, merged_q)) ** 2,
        upper,
    )


def probabilities(answer: TopK, row: int) -> dict[int, float]:
    return dict(zip(answer.ids[row].tolist(), np.exp(answer.logprobs[row]).tolist(), strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_closed_forms_equal_brute_force(pairs: Pairs, seed: int) -> None:
    found = pairs(seed, n=25, vocabulary=60)
    many = divergences(found.p, found.q)
    for row in range(25):
        p, q = probabilities(found.p, row), probabilities(found.q, row)
        want = brute_force(p, q)
        if 1 - sum(q[i] for i in p.keys() & q.keys()) < 2e-6:
            continue  # there the bucket is floored on purpose
        got = (many.kl_lower, many.p_covered, many.q_covered, many.jsd_lower, many.jsd_upper)
        assert [float(x[row]) for x in got] == pytest.approx(want, rel=1e-7, abs=1e-9)
        assert many.shared[row] == len(p.keys() & q.keys())


def test_one_pair_equals_its_row_and_direction_is_as_stated(cold: TopK) -> None:
    hit = TopK.of([7, 3, 11], [math.log(x) for x in (0.5, 0.3, 0.1)])
    forth, back = divergence(cold, hit), divergence(hit, cold)
    assert forth.kl_lower == pytest.approx(
        0.9 * math.log(0.9 / 0.5) + 0.06 * math.log(0.06 / 0.3) + 0.04 * math.log(0.04 / 0.2)
    )
    assert back.kl_lower == pytest.approx(
        0.5 * math.log(0.5 / 0.9) + 0.3 * math.log(0.3 / 0.06) + 0.2 * math.log(0.2 / 0.04)
    )
    assert forth.kl_lower != pytest.approx(back.kl_lower, rel=0.01)
    assert (forth.jsd_lower, forth.jsd_upper) == pytest.approx((back.jsd_lower, back.jsd_upper))
    assert (forth.p_covered, forth.q_covered) == pytest.approx((0.97, 0.9))
    assert (forth.shared, forth.nonfinite) == (2, 0)


def test_asked_ids_tighten_the_bound(cold: TopK) -> None:
    hit = TopK.of([40, 41], [math.log(0.5), math.log(0.2)])
    told = TopK.of([7, 3, 5], [math.log(x) for x in (0.001, 0.01, 0.02)])
    without, with_ids = divergence(cold, hit), divergence(cold, hit, q_asked=told)
    assert (without.shared, without.kl_lower, without.jsd_lower) == (0, 0.0, 0.0)
    assert without.jsd_upper == LN2
    assert with_ids.shared == 3
    assert with_ids.kl_lower > 5
    assert with_ids.jsd_lower > 0.5
    assert with_ids.q_covered == pytest.approx(0.731)
    both_ways = divergence(hit, cold, p_asked=told)
    assert both_ways.jsd_lower == pytest.approx(with_ids.jsd_lower)


def test_over_limits_the_shared_ids(cold: TopK) -> None:
    hit = TopK.of([7, 3, 5], [math.log(x) for x in (0.5, 0.3, 0.1)])
    limited = divergence(cold, hit, over=np.array([7, 99]))
    assert limited.shared == 1
    want = brute_force({7: 0.9}, {7: 0.5})
    assert (limited.kl_lower, limited.jsd_lower, limited.jsd_upper) == pytest.approx(
        (want[0], want[3], want[4])
    )
    assert (limited.p_covered, limited.q_covered) == pytest.approx((0.97, 0.9))


def test_order_of_entries_does_not_matter(cold: TopK) -> None:
    hit = TopK.of([7, 11, 3], [math.log(x) for x in (0.5, 0.3, 0.1)])
    turned = TopK(hit.ids[::-1], hit.logprobs[::-1])
    assert divergence(cold, turned) == divergence(cold, hit)


def test_infinite_kl_is_kept(cold: TopK) -> None:
    hit = TopK.of([3, 5, 7], [math.log(0.9), math.log(0.1), -INF])
    found = divergence(cold, hit)
    assert found.kl_lower == INF
    assert found.nonfinite == 1
    assert 0.5 < found.jsd_lower <= found.jsd_upper <= LN2
    reverse = divergence(hit, cold)
    assert math.isfinite(reverse.kl_lower)
    assert divergence(hit, hit).kl_lower == 0.0


def test_a_probability_too_small_for_a_double_is_not_infinite(cold: TopK) -> None:
    hit = TopK.of([3, 5, 7], [math.log(0.9), math.log(0.1), -900.0])
    assert divergence(cold, hit).kl_lower == pytest.approx(0.9 * 900, rel=0.01)
    assert divergence(cold, hit).jsd_lower < LN2


def test_rounding_alone_never_makes_kl_infinite() -> None:
    full = np.array([0.7, 0.2, 0.1])
    rounded = np.log(full).astype(np.float32).astype(np.float64) + 5e-8
    p = TopK.of([1, 2], np.log(full[:2]).tolist())
    q = TopK(np.array([1, 2, 3]), rounded)
    found = divergence(p, q)
    assert math.isfinite(found.kl_lower)
    assert math.isfinite(divergence(q, q).kl_lower)
    # Q told all its mass, so nothing of it is left for what P kept to itself: large but finite.
    all_told = divergence(p, TopK(q.ids[:2], np.log(np.array([0.78, 0.22]))))
    assert 0.5 < all_told.kl_lower < 1.5


@pytest.mark.parametrize(
    ("ids", "logprobs", "nonfinite"),
    [
        ([], [], 0),
        ([7, 3, 5], [-0.1, -3.0], 0),
        ([7, 7, 3], [-0.1, -3.0, -4.0], 0),
        ([7, 3], [0.5, -3.0], 0),
        ([7, 3], [-0.1, -0.1], 0),
        ([7, 3], [None, None], 2),
        ([7, 3], [-0.1, None], 1),
        ([7, 3], [float("nan"), -3.0], 1),
        ([7, 3], [INF, -3.0], 1),
        ([7, 3], [-0.1, -9999.0], 1),
    ],
)
def test_bad_answers_never_give_a_number(
    cold: TopK, ids: list[int], logprobs: list[float | None], nonfinite: int
) -> None:
    bad = TopK.of(ids, logprobs)
    assert bad.problems() != ()
    for found in (divergence(cold, bad), divergence(bad, cold)):
        figures = (found.kl_lower, found.p_covered, found.q_covered, found.jsd_lower, found.jsd_upper)
        assert all(math.isnan(x) for x in figures)
        assert found.nonfinite == nonfinite
    asked = divergence(cold, TopK.of([40], [-0.2]), q_asked=bad)
    if ids:
        assert math.isnan(asked.jsd_lower)
        assert asked.nonfinite == nonfinite
    else:
        assert math.isfinite(asked.jsd_lower)  # nothing was asked for: no defect


def test_a_bad_row_leaves_its_neighbours_alone(cold: TopK) -> None:
    many = divergences(stack([cold, cold, cold]), stack([cold, None, cold]))
    assert many.jsd_lower.tolist() == pytest.approx([0.0, math.nan, 0.0], nan_ok=True)
    assert many.shared.tolist() == [3, 0, 3]
    short = TopK.of([7], [-0.2])
    assert divergences(stack([cold, short]), stack([cold, short])).shared.tolist() == [3, 1]


def test_rows_of_divergences_are_cut_from_every_field(cold: TopK) -> None:
    many = divergences(stack([cold, cold, None]), stack([cold, None, cold]))
    kept = many.rows(np.array([True, False, True]))
    assert kept.jsd_lower.tolist() == pytest.approx([0.0, math.nan], nan_ok=True)
    assert kept.shared.tolist() == [3, 0]


def test_shapes_that_do_not_fit_raise(cold: TopK) -> None:
    one, two = stack([cold]), stack([cold, cold])
    with pytest.raises(ValueError, match="expected 1 rows"):
        divergences(one, two)
    with pytest.raises(ValueError, match="expected 2 rows"):
        divergences(two, two, q_asked=one)
    with pytest.raises(ValueError, match="expected 2 rows"):
        divergences(two, two, over=np.array([[7]]))
    with pytest.raises(ValueError, match="expected 1 rows"):
        divergences(one, TopK(one.ids, one.logprobs[:, :2]))


def test_no_pairs_give_empty_arrays() -> None:
    none = divergences(stack([]), stack([]))
    assert all(getattr(none, name).shape == (0,) for name in Divergences.__dataclass_fields__)


def test_many_chunks_equal_one_by_one(pairs: Pairs) -> None:
    found = pairs(3, n=40, vocabulary=50)
    repeated = [np.tile(x, (500, 1)) for x in (found.p.ids, found.p.logprobs, found.q.ids, found.q.logprobs)]
    many = divergences(TopK(repeated[0], repeated[1]), TopK(repeated[2], repeated[3]))
    once = divergences(found.p, found.q)
    assert np.array_equal(many.kl_lower, np.tile(once.kl_lower, 500))
    assert np.array_equal(many.jsd_upper, np.tile(once.jsd_upper, 500))
    over = np.arange(20_000)[:, None] % 50
    limited = divergences(
        TopK(repeated[0], repeated[1]), TopK(repeated[2], repeated[3]), q_asked=None, over=over
    )
    both = (repeated[0] == over).any(axis=1) & (repeated[2] == over).any(axis=1)
    assert np.array_equal(limited.shared, both)


def test_js_term_at_its_limits() -> None:
    p = np.array([0.3, 0.0, 0.0, 0.2, 1e-200])
    q = np.array([0.3, 0.4, 0.0, 0.2 * (1 + 1e-7), 1e-200])
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = js(p, q, np.log(p / q))
    assert terms[0] == 0.0
    assert terms[1] == pytest.approx(LN2 / 2 * 0.4)
    assert terms[2] == terms[4] == 0.0
    assert terms[3] == pytest.approx(0.2 * 1e-14 / 8, abs=1e-16)


def test_asked_answers_tighten_every_pair(pairs: Pairs) -> None:
    found = pairs(11, n=200, vocabulary=300, k=5)
    asked = TopK(found.p.ids, np.take_along_axis(found.log_q, found.p.ids, axis=1))
    loose = divergences(found.p, found.q)
    tight = divergences(found.p, found.q, q_asked=asked)
    assert (tight.shared == 5).all()
    assert (tight.kl_lower >= loose.kl_lower - 1e-12).all()
    assert tight.kl_lower.mean() > 1.2 * loose.kl_lower.mean()


def test_moved_is_the_mean_distance_of_the_shared_logprobs() -> None:
    p = TopK.of([5, 7, 9], [-0.1, -3.0, -5.0])
    q = TopK.of([5, 7, 8], [-0.2, -3.5, -4.0])
    assert divergence(p, q).moved == pytest.approx((0.1 + 0.5) / 2)
    asked = TopK.of([9], [-7.0])
    assert divergence(p, q, q_asked=asked).moved == pytest.approx((0.1 + 0.5 + 2.0) / 3)
    assert divergence(p, p).moved == 0.0


def test_moved_keeps_what_is_not_finite() -> None:
    sure = TopK.of([1, 2], [0.0, -INF])
    assert divergence(sure, sure).moved == 0.0
    assert divergence(sure, TopK.of([1, 2], [-0.5, -1.0])).moved == INF
    assert math.isnan(divergence(TopK.of([1], [-0.1]), TopK.of([2], [-0.1])).moved)
    assert math.isnan(divergence(sure, TopK.of([1, 2], [math.nan, -1.0])).moved)
