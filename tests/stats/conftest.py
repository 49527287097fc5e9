"""Random full distributions and the censored top-k answers they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import logsumexp

from fidelity.stats.topk import FloatArray, TopK


class Censored(NamedTuple):
    """n pairs of full distributions (logs, [n, vocabulary]) and the top-k answers they give."""

    log_p: FloatArray
    log_q: FloatArray
    p: TopK
    q: TopK


def top(log: FloatArray, k: int, rng: np.random.Generator) -> TopK:
    """The k likeliest ids of each row, in random order."""
    ids = rng.permuted(np.argpartition(-log, k - 1, axis=1)[:, :k], axis=1)
    return TopK(ids, np.take_along_axis(log, ids, axis=1))


def random_pairs(seed: int, n: int, vocabulary: int | None = None, k: int | None = None) -> Censored:
    """Peaked and flat distributions, near and far from each other; size and k are drawn unless given."""
    rng = np.random.default_rng(seed)
    size = int(np.exp(rng.uniform(np.log(50), np.log(5001)))) if vocabulary is None else vocabulary
    sharpness = 10 ** rng.uniform(-1.5, 1.2, (n, 1))
    logits = sharpness * rng.standard_normal((n, size))
    other = logits + 10 ** rng.uniform(-4, 1, (n, 1)) * rng.standard_normal((n, size))
    unrelated = rng.random(n) < 0.2
    other[unrelated] = sharpness[unrelated] * rng.standard_normal((int(unrelated.sum()), size))
    log_p = logits - logsumexp(logits, axis=1, keepdims=True)
    log_q = other - logsumexp(other, axis=1, keepdims=True)
    k_p, k_q = (int(rng.integers(1, 51)) if k is None else k for _ in range(2))
    return Censored(log_p, log_q, top(log_p, k_p, rng), top(log_q, k_q, rng))


@pytest.fixture(scope="session")
def pairs() -> Callable[..., Censored]:
    return random_pairs


@pytest.fixture
def cold() -> TopK:
    """A sure answer: id 7 at 0.9, then 3 and 5."""
    return TopK.of([7, 3, 5], [float(np.log(x)) for x in (0.9, 0.06, 0.01)])
