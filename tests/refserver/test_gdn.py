from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.refserver import gdn
from fidelity.refserver.build import build_layers
from fidelity.refserver.model import Model
from fidelity.refserver.weights import Weights

HEADS, DK, DV = 3, 16, 8


def drawn(tokens: int, seed: int, same_keys: bool = False) -> list[np.ndarray]:
    """q, k, v, g, beta and a state for ``tokens`` tokens, float32; equal keys are the hard case."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, tokens, HEADS, DK))
    if same_keys:
        k[:] = k[:1]
    q /= np.linalg.norm(q, axis=-1, keepdims=True) * DK**0.5
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((tokens, HEADS, DV))
    g = -rng.uniform(0, 0.02 if same_keys else 1, (tokens, HEADS))
    beta = rng.uniform(0.9 if same_keys else 0, 1, (tokens, HEADS))
    return [x.astype(np.float32) for x in (q, k, v, g, beta, rng.standard_normal((HEADS, DK, DV)))]


def by_loops(slow: SimpleNamespace, args: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [tokens, heads, dv] and the state after each token [tokens, heads, dk, dv], in float64."""
    q, k, v, g, beta, state = (x.astype(np.float64) for x in args)
    heads = [slow.delta_rule(q[:, h], k[:, h], v[:, h], g[:, h], beta[:, h], state[h]) for h in range(HEADS)]
    outs, states = zip(*heads, strict=True)
    return np.stack(outs, axis=1), np.stack([np.array(s) for s in states], axis=1)


@given(tokens=st.integers(1, 200), position=st.integers(0, 130), seed=st.integers(0, 9), same=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_chunk_form_is_the_recurrence(
    slow: SimpleNamespace, tokens: int, position: int, seed: int, same: bool
) -> None:
    args = drawn(tokens, seed, same)
    out, state, states = gdn.chunked(*args, position)
    expected, after = by_loops(slow, args)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    np.testing.assert_allclose(state, after[-1], atol=2e-5)
    assert sorted(states) == [p for p in range(64, 400, 64) if position < p <= position + tokens]
    for p, kept in states.items():
        np.testing.assert_allclose(kept, after[p - position - 1], atol=2e-5)


def test_the_step_is_the_recurrence(slow: SimpleNamespace) -> None:
    args = drawn(50, 0)
    expected, after = by_loops(slow, args)
    state = args[-1]
    for t in range(50):
        out, state = gdn.step(*(x[t] for x in args[:-1]), state)
        np.testing.assert_allclose(out, expected[t], atol=2e-5)
    np.testing.assert_allclose(state, after[-1], atol=2e-5)


def test_a_step_leaves_its_state_alone() -> None:
    args = drawn(1, 0)
    before = args[-1].copy()
    gdn.step(*(x[0] for x in args[:-1]), args[-1])
    assert (args[-1] == before).all()


def test_the_inverse_survives_keys_that_are_all_alike() -> None:
    """All ones below the diagonal: its powers reach 1e17, while the inverse has only 1 and -1."""
    ones = np.tril(np.ones((1, 64, 64), np.float32), -1)
    expected = np.eye(64) - np.eye(64, k=-1)
    np.testing.assert_array_equal(gdn.unit_lower_inverse(ones)[0], expected)


def test_the_inverse_of_random_matrices() -> None:
    a = np.tril(np.random.default_rng(0).uniform(-0.5, 0.5, (2, 5, 64, 64)), -1).astype(np.float32)
    product = gdn.unit_lower_inverse(a).astype(np.float64) @ (np.eye(64) + a)
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(64), product.shape), atol=1e-3)


@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_the_layer_is_the_slow_layer(
    slow: SimpleNamespace, small_weights: Weights, model: Model, layer_tensors, tokens: int
) -> None:
    x = np.random.default_rng(tokens).standard_normal((tokens, 128)).astype(np.float32)
    recurrent = model.empty().recurrent
    piece = gdn.Piece(0, tokens, 0, recurrent.conv[0], recurrent.state[0], ())
    mixer = build_layers(small_weights)[0].mixer
    assert isinstance(mixer, gdn.GdnWeights)
    out, (carried,) = gdn.forward(mixer, x, [piece])
    expected = slow.gdn_layer(layer_tensors(0), small_weights.config, x.astype(np.float64))
    np.testing.assert_allclose(out, expected, atol=1e-4)
    assert carried.conv.shape == recurrent.conv[0].shape
