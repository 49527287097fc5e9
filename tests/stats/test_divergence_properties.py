"""The bounds hold for every full distribution behind two censored answers: no violation in 20 000 pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fidelity.stats.divergence import Divergences, divergences
from fidelity.stats.topk import FloatArray, IntArray, TopK

Pairs = Callable[..., Any]
PAIRS = 200
EXAMPLES = 100
SLACK = 1e-9
seeds = st.integers(0, 2**32 - 1)
many = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
few = settings(max_examples=15, deadline=None, derandomize=True)


def truth(log_p: FloatArray, log_q: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """KL(P || Q), KL(Q || P) and JSD of full distributions, in nats."""
    p, q = np.exp(log_p), np.exp(log_q)
    log_m = np.log((p + q) / 2)
    jsd = (p * (log_p - log_m) + q * (log_q - log_m)).sum(axis=1) / 2
    return (p * (log_p - log_q)).sum(axis=1), (q * (log_q - log_p)).sum(axis=1), jsd


def at(log: FloatArray, ids: IntArray) -> FloatArray:
    return np.take_along_axis(log, ids, axis=1)


def assert_bounds(found: Divergences, kl_true: FloatArray, jsd_true: FloatArray) -> None:
    assert (found.kl_lower >= 0).all()
    assert (found.kl_lower <= kl_true + SLACK).all()
    assert (found.jsd_lower >= 0).all()
    assert (found.jsd_lower <= jsd_true + SLACK).all()
    assert (jsd_true <= found.jsd_upper + SLACK).all()
    assert (found.jsd_upper <= math.log(2)).all()


def test_bounds_hold_in_both_directions_over_20_000_pairs(pairs: Pairs) -> None:
    checked = 0

    @many
    @given(seeds)
    def check(seed: int) -> None:
        nonlocal checked
        full = pairs(seed, PAIRS)
        kl_forth, kl_back, jsd_true = truth(full.log_p, full.log_q)
        assert_bounds(divergences(full.p, full.q), kl_forth, jsd_true)
        assert_bounds(divergences(full.q, full.p), kl_back, jsd_true)
        q_asked = TopK(full.p.ids, at(full.log_q, full.p.ids))
        p_asked = TopK(full.q.ids, at(full.log_p, full.q.ids))
        assert_bounds(divergences(full.p, full.q, q_asked=q_asked), kl_forth, jsd_true)
        assert_bounds(divergences(full.p, full.q, p_asked, q_asked), kl_forth, jsd_true)
        assert_bounds(divergences(full.p, full.q, over=full.q.ids[:, :3]), kl_forth, jsd_true)
        checked += PAIRS

    check()
    assert checked >= 20_000


@few
@given(seeds, st.integers(50, 200))
def test_equality_when_k_covers_everything(pairs: Pairs, seed: int, vocabulary: int) -> None:
    full = pairs(seed, 50, vocabulary, k=vocabulary)
    found = divergences(full.p, full.q)
    kl_true, _, jsd_true = truth(full.log_p, full.log_q)
    assert np.allclose(found.kl_lower, kl_true, rtol=1e-9, atol=1e-9)
    assert np.allclose(found.jsd_lower, jsd_true, rtol=1e-9, atol=1e-9)
    assert np.allclose(found.jsd_upper, found.jsd_lower, rtol=0, atol=1e-9)
    assert (found.shared == vocabulary).all()


@few
@given(seeds)
def test_identical_answers_give_exactly_zero(pairs: Pairs, seed: int) -> None:
    full = pairs(seed, 200)
    turned = TopK(full.p.ids[:, ::-1], full.p.logprobs[:, ::-1])
    found = divergences(full.p, turned)
    assert (found.kl_lower == 0.0).all()
    assert (found.jsd_lower == 0.0).all()


@few
@given(seeds)
def test_jsd_is_symmetric_and_more_ids_never_loosen(pairs: Pairs, seed: int) -> None:
    full = pairs(seed, 100, vocabulary=400, k=30)
    forth, back = divergences(full.p, full.q), divergences(full.q, full.p)
    assert np.allclose(forth.jsd_lower, back.jsd_lower, rtol=0, atol=1e-12)
    assert np.allclose(forth.jsd_upper, back.jsd_upper, rtol=0, atol=1e-12)
    fewer = divergences(full.p, full.q, over=full.p.ids[:, :10])
    assert (fewer.jsd_lower <= forth.jsd_lower + SLACK).all()
    assert (fewer.jsd_upper >= forth.jsd_upper - SLACK).all()


@few
@given(seeds, st.sampled_from([np.float32, np.float16]))
def test_rounded_logprobs_never_make_kl_infinite(pairs: Pairs, seed: int, kind: type[np.floating]) -> None:
    full = pairs(seed, 100, vocabulary=50, k=50)
    rounded = TopK(full.q.ids, full.q.logprobs.astype(kind).astype(np.float64))
    found = divergences(TopK(full.p.ids[:, :20], full.p.logprobs[:, :20]), rounded)
    assert not np.isinf(found.kl_lower).any()
