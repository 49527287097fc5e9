from types import SimpleNamespace

import numpy as np
import pytest

from fidelity.refserver.model import Model, Segment, State
from fidelity.refserver.moe import Experts
from fidelity.refserver.weights import Weights

BOUND = 5e-4  # |Δ logit| where logits have a spread of 6; measured 7e-5, and 2e-4 against float64


def decoded(model: Model, state: State, ids: np.ndarray) -> np.ndarray:
    """Logits after each id, one forward a token."""
    rows = []
    for token in ids:
        (result,) = model.forward([Segment(np.array([token]), state, decode=True)])
        state = result.state
        rows.append(result.logits[-1])
    return np.array(rows)


def test_the_model_is_the_slow_model(
    slow: SimpleNamespace, small_weights: Weights, model: Model, ids: np.ndarray
) -> None:
    (result,) = model.forward([Segment(ids[:80], model.empty(), logits_from=0)])
    expected = slow.logits(small_weights, ids[:80])
    np.testing.assert_allclose(result.logits, expected, atol=BOUND)
    assert (result.logits.argmax(axis=1) == expected.argmax(axis=1)).all()


def test_token_by_token_is_the_prefill(model: Model, ids: np.ndarray) -> None:
    (whole,) = model.forward([Segment(ids[:150], model.empty(), logits_from=0)])
    np.testing.assert_allclose(decoded(model, model.empty(), ids[:150]), whole.logits, atol=BOUND)


@pytest.mark.parametrize("position", [64, 192])
def test_a_cached_continuation_is_the_fresh_prefill(
    model: Model, ids: np.ndarray, resume, position: int
) -> None:
    for tail in (*range(1, 65), 65, 100, 128):
        sent = ids[: position + tail]
        cold, state = resume(model, sent, position)
        (hit,) = model.forward([Segment(sent[position:], state)])
        np.testing.assert_allclose(hit.logits, cold.logits, atol=BOUND, err_msg=f"tail {tail}")
        assert hit.logits.argmax() == cold.logits.argmax()


def test_states_after_a_continuation_are_those_of_a_prefill(model: Model, ids: np.ndarray, resume) -> None:
    cold, state = resume(model, ids[:200], 64)
    (hit,) = model.forward([Segment(ids[64:200], state, (128, 192))])
    (fresh,) = model.forward([Segment(ids[:200], model.empty(), (128, 192))])
    assert hit.state.length == cold.state.length == 200
    for a, b in [
        (hit.state.recurrent, fresh.state.recurrent),
        *((hit.checkpoints[p], fresh.checkpoints[p]) for p in (128, 192)),
    ]:
        for mine, theirs in zip((*a.conv, *a.state), (*b.conv, *b.state), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=BOUND)
    np.testing.assert_allclose(hit.state.keys[0], fresh.state.keys[0], atol=BOUND)


def test_a_segment_may_start_off_the_grid(model: Model, ids: np.ndarray) -> None:
    (first,) = model.forward([Segment(ids[:70], model.empty())])
    (second,) = model.forward([Segment(ids[70:200], first.state, (128, 192))])
    (fresh,) = model.forward([Segment(ids[:200], model.empty(), (128, 192))])
    np.testing.assert_allclose(second.logits, fresh.logits, atol=BOUND)
    np.testing.assert_allclose(second.checkpoints[128].state[2], fresh.checkpoints[128].state[2], atol=BOUND)


def test_a_checkpoint_reached_by_one_token_is_kept(model: Model, ids: np.ndarray) -> None:
    (before,) = model.forward([Segment(ids[:63], model.empty())])
    (after,) = model.forward([Segment(ids[63:64], before.state, (64,), decode=True)])
    (fresh,) = model.forward([Segment(ids[:64], model.empty(), (64,))])
    for mine, theirs in zip(after.checkpoints[64].state, fresh.checkpoints[64].state, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=BOUND)


def test_in_a_batch_as_alone(model: Model, ids: np.ndarray, resume) -> None:
    _, state = resume(model, ids[:130], 128)
    segments = [
        Segment(ids[:90], model.empty(), (64,), logits_from=80),
        Segment(ids[128:129], state),
        Segment(ids[200:203], model.empty()),
    ]
    together = model.forward(segments)
    for segment, result in zip(segments, together, strict=True):
        (alone,) = model.forward([segment])
        np.testing.assert_allclose(result.logits, alone.logits, atol=BOUND)
        np.testing.assert_allclose(result.state.keys[0], alone.state.keys[0], atol=BOUND)
        assert result.state.length == alone.state.length
        assert result.checkpoints.keys() == alone.checkpoints.keys()


def test_the_rows_of_logits_asked_for(model: Model, ids: np.ndarray, resume) -> None:
    cold, state = resume(model, ids[:100], 64)
    assert cold.logits.shape == (1, 256)
    (tail,) = model.forward([Segment(ids[64:100], state, logits_from=90)])
    (early,) = model.forward([Segment(ids[64:100], state, logits_from=10)])  # before the segment: all of it
    assert tail.logits.shape == (10, 256)
    assert early.logits.shape == (36, 256)
    np.testing.assert_allclose(tail.logits, early.logits[-10:], atol=BOUND)
    assert tail.logits.dtype == np.float32


def test_the_same_call_twice_is_bit_equal(model: Model, ids: np.ndarray) -> None:
    first, second = (model.forward([Segment(ids[:193], model.empty())])[0] for _ in range(2))
    assert np.array_equal(first.logits, second.logits)


def test_states_are_never_written_to(model: Model, ids: np.ndarray, resume) -> None:
    _, state = resume(model, ids[:140], 128)
    arrays = (*state.recurrent.conv, *state.recurrent.state, *state.keys, *state.values)
    copies = [array.copy() for array in arrays]
    for tail in (1, 12):
        model.forward([Segment(ids[128 : 128 + tail], state)] * 2)
    for array, copy in zip(arrays, copies, strict=True):
        assert np.array_equal(array, copy)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [([], "at least one token"), ([256], "between 0 and 255"), ([-1], "between 0 and 255")],
)
def test_bad_ids_are_refused(model: Model, bad: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.forward([Segment(np.array(bad, dtype=np.int64), model.empty())])
    with pytest.raises(ValueError, match="at least one segment"):
        model.forward([])


def test_the_nan_fault_reaches_a_one_token_tail_only(small_weights: Weights, ids: np.ndarray, resume) -> None:
    faulty = Model(small_weights, Experts(fault="split-k-nan"))
    cold, state = resume(faulty, ids[:194], 192)
    assert np.isfinite(cold.logits).all()
    (one,) = faulty.forward([Segment(ids[192:193], state)])
    (two,) = faulty.forward([Segment(ids[192:194], state)])
    assert np.isnan(one.logits).all()
    assert one.logits[-1].argmax() == 0
    np.testing.assert_allclose(two.logits, cold.logits, atol=BOUND)


def test_the_finite_faults_change_the_answer_on_a_warm_pool(
    small_weights: Weights, ids: np.ndarray, resume, jsd
) -> None:
    faulty = Model(small_weights, Experts(fault="split-k-extend"))
    cold, state = resume(faulty, ids[:193], 192)
    faulty.warm_up()
    for _ in range(3):
        (hit,) = faulty.forward([Segment(ids[192:193], state)])
        assert np.isfinite(hit.logits).all()
        assert jsd(hit.logits[-1], cold.logits[-1]) > 0.05
    decode = decoded(faulty, state, ids[192:196])
    (right,) = Model(small_weights, Experts()).forward([Segment(ids[192:196], state, logits_from=192)])
    np.testing.assert_allclose(decode, right.logits, atol=BOUND)
