from types import SimpleNamespace

import numpy as np
import pytest

from fidelity.refserver import attention
from fidelity.refserver.build import build_layers
from fidelity.refserver.model import Model
from fidelity.refserver.weights import Weights


@pytest.fixture
def mixer(small_weights: Weights) -> attention.AttentionWeights:
    found = build_layers(small_weights)[3].mixer
    assert isinstance(found, attention.AttentionWeights)
    return found


def test_the_layer_is_the_slow_layer(
    slow: SimpleNamespace,
    small_weights: Weights,
    model: Model,
    mixer: attention.AttentionWeights,
    layer_tensors,
) -> None:
    x = np.random.default_rng(0).standard_normal((40, 128)).astype(np.float32)
    state = model.empty()
    out, _ = attention.forward(mixer, x, [attention.Piece(0, 40, 0, state.keys[0], state.values[0])])
    expected = slow.attention_layer(layer_tensors(3), small_weights.config, x.astype(np.float64))
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_a_tail_on_cached_keys_is_the_end_of_the_whole(
    model: Model, mixer: attention.AttentionWeights
) -> None:
    x = np.random.default_rng(1).standard_normal((50, 128)).astype(np.float32)
    state = model.empty()
    whole, ((keys, values),) = attention.forward(
        mixer, x, [attention.Piece(0, 50, 0, state.keys[0], state.values[0])]
    )
    tail, ((after, _),) = attention.forward(
        mixer, x[33:], [attention.Piece(0, 17, 33, keys[:33], values[:33])]
    )
    np.testing.assert_allclose(tail, whole[33:], atol=1e-5)
    np.testing.assert_allclose(after, keys, atol=1e-5)


def test_query_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    q = rng.standard_normal((70, 4, 16)).astype(np.float32)
    keys, values = rng.standard_normal((2, 100, 2, 16)).astype(np.float32)
    whole = attention.attend(q, keys, values)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 32)
    np.testing.assert_allclose(attention.attend(q, keys, values), whole, atol=1e-6)


def test_no_query_sees_a_later_key() -> None:
    rng = np.random.default_rng(3)
    q = rng.standard_normal((5, 2, 8)).astype(np.float32)
    keys, values = rng.standard_normal((2, 9, 1, 8)).astype(np.float32)
    before = attention.attend(q, keys, values)
    keys[7:], values[7:] = 50, 50
    after = attention.attend(q, keys, values)
    np.testing.assert_array_equal(before[:3], after[:3])  # they see keys up to 4, 5 and 6
    assert (before[3:] != after[3:]).all()
