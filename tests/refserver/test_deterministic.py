"""The deterministic mode: one token a forward, so that the same ids give the same bits on every path."""

from collections.abc import Iterator

import numpy as np
import pytest

from fidelity.refserver.model import Model, Segment
from fidelity.refserver.settings import Settings
from fidelity.refserver.weights import Weights


@pytest.fixture
def exact(model: Model) -> Iterator[Model]:
    model.deterministic = True
    yield model
    model.deterministic = False


def test_cold_resumed_and_decoded_rows_are_bit_equal(exact: Model, ids: np.ndarray) -> None:
    (cold,) = exact.forward([Segment(ids[:70], exact.empty(), (64,), logits_from=60)])
    start = exact.forward([Segment(ids[:64], exact.empty())])[0].state
    state, rows = start, []
    for at in range(64, 70):
        (one,) = exact.forward([Segment(ids[at : at + 1], state, decode=True)])
        state = one.state
        rows.append(one.logits[-1])
    assert np.array_equal(np.stack(rows), cold.logits[4:])
    assert all(map(np.array_equal, cold.checkpoints[64].state, start.recurrent.state))
    assert all(map(np.array_equal, cold.checkpoints[64].conv, start.recurrent.conv))
    assert all(map(np.array_equal, cold.state.keys, state.keys))


def test_company_changes_no_bit(exact: Model, ids: np.ndarray) -> None:
    alone = exact.forward([Segment(ids[:10], exact.empty())])[0]
    together = exact.forward([Segment(part, exact.empty()) for part in (ids[50:60], ids[:10], ids[:3])])[1]
    assert np.array_equal(alone.logits, together.logits)


def test_the_rows_are_the_batched_ones_but_for_rounding(exact: Model, ids: np.ndarray) -> None:
    segment = Segment(ids[:70], exact.empty(), logits_from=0, every_state=True)
    (one_by_one,) = exact.forward([segment])
    exact.deterministic = False
    (batched,) = exact.forward([segment])
    assert one_by_one.logits.shape == batched.logits.shape == (70, 256)
    assert not np.array_equal(one_by_one.logits, batched.logits)
    np.testing.assert_allclose(one_by_one.logits, batched.logits, atol=1e-3)
    assert len(one_by_one.states) == len(batched.states) == 70


def test_bad_ids_are_refused_before_anything_is_computed(exact: Model, small_weights: Weights) -> None:
    with pytest.raises(ValueError, match="at least one segment"):
        exact.forward([])
    with pytest.raises(ValueError, match="between 0 and 255"):
        exact.forward([Segment(np.array([3, small_weights.config.vocab_size]), exact.empty())])


def test_it_excludes_speculation() -> None:
    with pytest.raises(ValueError, match="deterministic and speculative exclude each other"):
        Settings(speculative="NEXTN", deterministic=True)
    with pytest.raises(ValueError, match="speculative must be one of NEXTN, got 'EAGLE3'"):
        Settings(speculative="EAGLE3")
    with pytest.raises(ValueError, match="speculative_num_steps must be at least 1"):
        Settings(speculative="NEXTN", speculative_num_steps=0)
