from __future__ import annotations

import math

import numpy as np
import pytest

from fidelity.stats.scores import score_label, summarise, token_scores

INF = float("inf")


def test_scores_are_those_of_the_definition() -> None:
    decode, prefill = np.log([0.5, 0.2, 0.9]), np.log([0.4, 0.3, 0.9])
    found = token_scores(decode, prefill)
    r = np.array([0.8, 1.5, 1.0])
    assert found.k1 == pytest.approx(-np.log(r))
    assert found.k2 == pytest.approx(np.log(r) ** 2 / 2)
    assert found.k3 == pytest.approx(r - 1 - np.log(r))
    assert found.k3[2] == found.k2[2] == 0.0


def test_small_ratios_keep_their_digits() -> None:
    found = token_scores(np.array([-1.0]), np.array([-1.0 + 1e-8]))
    assert found.k3[0] == pytest.approx(0.5e-16, rel=1e-6, abs=0)


def test_k3_explodes_one_way_only() -> None:
    found = token_scores(np.array([-20.5, -0.5]), np.array([-0.5, -20.5]))
    assert found.k3 == pytest.approx([math.e**20 - 21, 19.0], rel=1e-6)


def test_tokens_drawn_from_q_give_unbiased_k1_and_k3() -> None:
    rng = np.random.default_rng(5)
    q = rng.dirichlet(np.ones(8))
    p = q * np.exp(0.2 * rng.normal(size=8))
    p /= p.sum()
    truth = float((q * np.log(q / p)).sum())
    drawn = rng.choice(8, size=200_000, p=q)
    found = token_scores(np.log(q)[drawn], np.log(p)[drawn])
    for estimate in (found.k1, found.k3):
        error = float(estimate.std()) / math.sqrt(drawn.size)
        assert abs(float(estimate.mean()) - truth) < 4 * error
    assert found.k3.std() < found.k1.std() / 3


@pytest.mark.parametrize("bad", [float("nan"), INF, -9999.0, 1e31, 0.5])
def test_an_undefined_logprob_is_never_skipped(bad: float) -> None:
    for decode, prefill in (([-1.0, bad], [-1.0, -1.0]), ([-1.0, -1.0], [-1.0, bad])):
        found = token_scores(np.array(decode), np.array(prefill))
        assert found.k1[0] == 0.0
        assert all(math.isnan(k[1]) for k in (found.k1, found.k2, found.k3))
        summary = summarise(found.k3, "score")
        assert (summary.n, summary.nonfinite, summary.share_above) == (2, 1, 0.5)
        figures = (summary.mean, summary.median, summary.p95, summary.p99, summary.capped_mean)
        assert all(math.isnan(x) for x in figures)


def test_infinite_scores_are_kept_and_capped() -> None:
    found = token_scores(np.array([-1.0, -INF]), np.array([-INF, -1.0]))
    assert found.k1.tolist() == [INF, -INF]
    assert found.k3.tolist() == [INF, INF]
    summary = summarise(np.array([0.0, 0.0, 0.0, INF]), "score", cap=2.0)
    assert summary.mean == summary.p99 == INF
    assert (summary.capped_mean, summary.median, summary.share_above) == (0.5, 0.0, 0.25)


def test_summary_of_a_known_sample() -> None:
    values = np.arange(1, 101) / 100
    summary = summarise(values, "KL estimate", threshold=0.9, cap=0.5)
    assert summary.mean == pytest.approx(0.505)
    assert summary.median == pytest.approx(0.505)
    assert (summary.p95, summary.p99) == (0.96, 1.0)
    assert summary.share_above == pytest.approx(0.10)
    assert summary.capped_mean == pytest.approx((values[:50].sum() + 25) / 100)
    assert summarise(-values, "score", threshold=0.9).share_above == pytest.approx(0.10)
    assert (summary.label, summary.threshold, summary.cap) == ("KL estimate", 0.9, 0.5)


def test_one_enormous_token_leaves_the_capped_mean_and_the_share_alone() -> None:
    k3 = np.full(1000, 1e-4)
    k3[0] = 4.9e8
    summary = summarise(k3, "score")
    assert summary.mean > 1e5
    assert summary.capped_mean < 0.002
    assert summary.share_above == 0.001


def test_greedy_tokens_are_not_called_an_estimate() -> None:
    assert score_label(1.0) == "KL estimate"
    assert score_label(0.0) == score_label(0.7) == "score"


def test_what_cannot_be_scored_raises() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        token_scores(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="no tokens"):
        summarise(np.zeros(0), "score")
