from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from fidelity.refserver import moe
from fidelity.refserver.build import build_layers
from fidelity.refserver.weights import Weights

SHAPE = {"K": 128, "I": 64, "topk": 2, "E": 8}
WRONG = {16: {1}, 32: {1, 2}, 64: {1, 2, 3, 4}}  # M by virtual compute units: the threads' TP 1, 2 and 4
BATCHES = (1, 2, 3, 4, 5, 8)


@pytest.fixture(scope="module")
def layer(small_weights: Weights) -> moe.MoeWeights:
    return build_layers(small_weights)[0].moe


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 128)).astype(np.float32)


def warmed(layer: moe.MoeWeights, **how: object) -> moe.Experts:
    """Experts whose pool other requests have used, at every small batch size."""
    experts = moe.Experts(**how)  # type: ignore[arg-type]
    for seed in range(8):
        for count in BATCHES:
            moe.forward(layer, rows(count, 100 + seed), experts, extend=True)
    return experts


def literal_ksplit(token, k, inter, topk, expert, cu):  # type: ignore[no-untyped-def]
    """The published rule in its own order, with the K tile of 256 standing as 16."""
    padded = 1
    while padded < token:
        padded *= 2
    if padded * topk > expert:
        return 0
    tg_num = padded * topk * ((inter + 127) // 128)
    if tg_num >= cu:
        return 0
    most = (cu + tg_num - 1) // tg_num
    for i in reversed(range(2, most + 1)):
        if k % i == 0 and (k // i) % 16 == 0:
            return i
    return 0


def test_k_splits_is_the_published_heuristic() -> None:
    for cu in (8, 16, 20, 32, 64, 80, 256):
        for M in range(1, 70):
            for K, width, topk, E in (
                (128, 64, 2, 8),
                (160, 640, 10, 512),
                (64, 200, 1, 4),
                (48, 64, 8, 256),
            ):
                assert moe.k_splits(M, K, width, topk, E, cu) == literal_ksplit(M, K, width, topk, E, cu)


@pytest.mark.parametrize("cu", WRONG)
def test_one_tile_per_split_exactly_where_the_threads_saw_it(cu: int) -> None:
    single = {M for M in range(1, 65) if moe.k_splits(M, cu=cu, **SHAPE) * moe.TILE == SHAPE["K"]}
    assert single == WRONG[cu]


@pytest.mark.parametrize(
    ("splits", "K", "guard", "left"),
    [
        (8, 128, "splitk", 4),
        (4, 128, "splitk", 4),
        (10, 160, "splitk", 5),
        (12, 192, "splitk", 6),
        (3, 48, "splitk", 0),
        (0, 128, "splitk", 0),
        (8, 128, "unsplit", 0),
        (8, 128, "none", 8),
    ],
)
def test_what_a_guard_leaves(splits: int, K: int, guard: moe.Guard, left: int) -> None:
    assert moe.guarded_splits(splits, K, guard) == left


@pytest.mark.parametrize("count", [1, 4, 5, 60])
def test_the_layer_is_the_slow_layer(
    slow: SimpleNamespace, small_weights: Weights, layer: moe.MoeWeights, layer_tensors, count: int
) -> None:
    x = rows(count)
    expected = slow.moe_layer(layer_tensors(0), small_weights.config, x.astype(np.float64))
    np.testing.assert_allclose(moe.forward(layer, x, moe.Experts(), extend=True), expected, atol=1e-4)


@pytest.mark.parametrize("cu", WRONG)
@pytest.mark.parametrize("fault", ["split-k", "split-k-nan", "split-k-extend"])
def test_the_fault_table(layer: moe.MoeWeights, cu: int, fault: moe.Fault) -> None:
    """Every token of an affected batch is wrong, every other batch is right, and a guard rights them all."""
    for guard in get_args(moe.Guard):
        experts = warmed(layer, cu=cu, fault=fault, guard=guard)
        for count in BATCHES:
            x = rows(count)
            right = moe.forward(layer, x, moe.Experts(guard="unsplit"), extend=True)
            got = moe.forward(layer, x, experts, extend=True)
            wrong = ~(np.abs(got - right).max(axis=1) < 1e-4)
            assert wrong.all() if guard == "none" and count in WRONG[cu] else not wrong.any(), (guard, count)
            assert np.isnan(got).all(axis=1).any() == (fault == "split-k-nan" and bool(wrong.any()))


def test_decode_is_clean_under_the_extend_fault(layer: moe.MoeWeights) -> None:
    x = rows(1)
    right = moe.forward(layer, x, moe.Experts(), extend=False)
    experts = warmed(layer, fault="split-k-extend")
    np.testing.assert_allclose(moe.forward(layer, x, experts, extend=False), right, atol=1e-5)
    assert np.abs(moe.forward(layer, x, experts, extend=True) - right).max() > 0.1


def test_what_comes_out_depends_on_what_the_memory_held(layer: moe.MoeWeights) -> None:
    experts = warmed(layer, fault="split-k")
    first, second = (moe.forward(layer, rows(1), experts, extend=True) for _ in range(2))
    assert np.isfinite(first).all()
    assert np.abs(first - second).max() > 0.1


def test_a_cold_pool_hides_the_finite_fault_once(layer: moe.MoeWeights) -> None:
    right = moe.forward(layer, rows(1), moe.Experts(), extend=True)
    experts = moe.Experts(fault="split-k")
    np.testing.assert_array_equal(moe.forward(layer, rows(1), experts, extend=True), right)
    assert np.abs(moe.forward(layer, rows(1), experts, extend=True) - right).max() > 0.1
    experts.pool.clear()
    np.testing.assert_array_equal(moe.forward(layer, rows(1), experts, extend=True), right)


def test_nan_needs_no_warm_pool(layer: moe.MoeWeights) -> None:
    assert np.isnan(moe.forward(layer, rows(1), moe.Experts(fault="split-k-nan"), extend=True)).all()


def test_nan_rows_pass_through(layer: moe.MoeWeights) -> None:
    x = rows(5)
    x[2] = np.nan
    out = moe.forward(layer, x, moe.Experts(), extend=True)
    assert np.isnan(out[2]).all()
    assert np.isfinite(np.delete(out, 2, axis=0)).all()


def test_noise_has_the_size_asked_for_and_a_seed(layer: moe.MoeWeights) -> None:
    x = rows(40)
    right = moe.forward(layer, x, moe.Experts(), extend=True)

    def off(sigma: float, seed: int) -> np.ndarray:
        experts = moe.Experts(noise=sigma, rng=np.random.default_rng(seed))
        return moe.forward(layer, x, experts, extend=True) - right

    assert not off(0.0, 0).any()
    assert np.array_equal(off(0.01, 0), off(0.01, 0))
    assert not np.array_equal(off(0.01, 0), off(0.01, 1))
    assert off(0.1, 0).std() == pytest.approx(10 * off(0.01, 0).std(), rel=0.01)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown guard 'retreat': one of none, splitk, unsplit"):
        moe.Experts(guard="retreat")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown fault"):
        moe.Experts(fault="split")  # type: ignore[arg-type]
