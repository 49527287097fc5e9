"""Speed, by hand: pytest tests/stats/test_benchmark.py -m slow."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fidelity.stats.divergence import divergences
from fidelity.stats.topk import TopK

PAIRS, K = 1_000_000, 20


def answers(seed: int) -> TopK:
    """Answers that share most of their ids, in different orders, as a cold answer and a hit do."""
    rng = np.random.default_rng(seed)
    pool = np.argsort(rng.random((1000, K + 4)), axis=1)[:, :K] + 24 * np.arange(1000)[:, None]
    ids = pool[np.arange(PAIRS) % 1000]
    return TopK(ids, np.log(rng.dirichlet(np.full(K + 1, 0.3), PAIRS)[:, :K] + 1e-9))


@pytest.mark.slow
def test_divergences_of_a_million_pairs(benchmark: BenchmarkFixture) -> None:
    cold, hit = answers(0), answers(1)
    found = benchmark.pedantic(divergences, (cold, hit), rounds=5, warmup_rounds=1)
    assert np.isfinite(found.kl_lower).all()
    assert found.shared.mean() > K / 2
