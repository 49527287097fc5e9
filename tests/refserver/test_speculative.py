"""The draft head against slow loops, and the states a verification hands out against plain decoding."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fidelity.refserver.draft import BLOCK, FILE, DraftHead, load_draft
from fidelity.refserver.model import Model, Segment
from fidelity.refserver.moe import Experts
from fidelity.refserver.random_profile import random_weights
from fidelity.refserver.weights import Config, Weights, pack

BOUND = 1e-4


def head_tensors(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """A random draft head of the shape that a configuration asks for."""
    rng = np.random.default_rng(seed)
    layer = {
        name.replace("model.layers.0.", BLOCK): tensor
        for name, tensor in random_weights(config, seed=seed).tensors.items()
        if name.startswith(("model.layers.0.mlp.", "model.layers.0.post_attention_layernorm."))
    }
    hidden = config.hidden_size
    norms = ("mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_embedding.weight")
    vectors = {name: 0.1 * rng.standard_normal(hidden).astype(np.float32) for name in norms}
    fc = rng.standard_normal((hidden, 2 * hidden)).astype(np.float32) / np.float32(hidden**0.5)
    return {**layer, **vectors, "mtp.fc.weight": fc}


@pytest.fixture
def head(small_weights: Weights, model: Model) -> DraftHead:
    return DraftHead(head_tensors(small_weights.config), model)


def test_the_head_is_the_slow_head(
    slow: SimpleNamespace, small_weights: Weights, model: Model, head: DraftHead
) -> None:
    tensors = {k: v.astype(np.float64) for k, v in head_tensors(small_weights.config).items()}
    block = {name.removeprefix(BLOCK): tensor for name, tensor in tensors.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * (1 + weight)

    hidden = np.random.default_rng(3).standard_normal((5, 128)).astype(np.float32)
    ids = np.array([7, 0, 255, 7, 31])
    logits, after = head.forward(hidden, ids)
    embedded = norm(model.embed[ids].astype(np.float64), tensors["mtp.pre_fc_norm_embedding.weight"])
    carried = norm(hidden.astype(np.float64), tensors["mtp.pre_fc_norm_hidden.weight"])
    x = np.concatenate([embedded, carried], axis=1) @ tensors["mtp.fc.weight"].T
    normed = norm(x, block["post_attention_layernorm.weight"])
    x = x + slow.moe_layer(block, small_weights.config, normed)
    np.testing.assert_allclose(after, norm(x, tensors["mtp.norm.weight"]), atol=BOUND)
    head_weight = small_weights.tensors["lm_head.weight"].astype(np.float64)
    np.testing.assert_allclose(logits, after @ head_weight.T, atol=1e-3)


def test_a_proposal_goes_on_from_its_own_guess(head: DraftHead) -> None:
    hidden, ids = np.random.default_rng(4).standard_normal((3, 128)).astype(np.float32), np.array([1, 2, 3])
    drafts = head.propose(hidden, ids, 3)
    for step in range(3):
        logits, hidden = head.forward(hidden, ids)
        ids = logits.argmax(axis=1)
        assert drafts[:, step].tolist() == ids.tolist()


@pytest.mark.parametrize(("rows", "cu", "wrong"), [(1, 16, True), (2, 16, False), (2, 32, True)])
def test_the_fault_reaches_the_drafts_of_a_small_batch(
    small_weights: Weights, rows: int, cu: int, wrong: bool
) -> None:
    hidden, ids = np.random.default_rng(5).standard_normal((rows, 128)).astype(np.float32), np.arange(rows)
    drafts = {}
    for fault in ("none", "split-k-nan", "split-k-extend"):
        target = Model(small_weights, Experts(cu=cu, fault=fault))  # type: ignore[arg-type]
        drafts[fault] = DraftHead(head_tensors(small_weights.config), target).propose(hidden, ids, 3)
    assert (drafts["split-k-nan"] == (0 if wrong else drafts["none"])).all()
    assert (drafts["none"] != 0).any()
    assert (drafts["split-k-extend"] == drafts["none"]).all()


@pytest.mark.parametrize("start", [0, 5, 62])
def test_a_verification_hands_out_the_state_after_every_token(
    model: Model, ids: np.ndarray, start: int
) -> None:
    state = model.empty()
    if start:
        (prefilled,) = model.forward([Segment(ids[:start], state)])
        state = prefilled.state
    asked = Segment(ids[start : start + 4], state, logits_from=start, decode=True, every_state=True)
    (verified,) = model.forward([asked])
    assert (verified.logits.shape, verified.hidden.shape, len(verified.states)) == ((4, 256), (4, 128), 4)
    for at in range(4):
        (plain,) = model.forward([Segment(ids[start + at : start + at + 1], state, decode=True)])
        state = plain.state
        np.testing.assert_allclose(verified.logits[at], plain.logits[-1], atol=1e-3)
        np.testing.assert_allclose(verified.hidden[at], plain.hidden[-1], atol=BOUND)
        for kind in ("conv", "state"):
            pairs = zip(getattr(verified.states[at], kind), getattr(state.recurrent, kind), strict=True)
            for own, other in pairs:
                np.testing.assert_allclose(own, other, atol=BOUND)
                assert not own.flags.writeable
    last = verified.states[-1]
    assert all(map(np.array_equal, last.state, verified.state.recurrent.state))
    assert all(map(np.array_equal, last.conv, verified.state.recurrent.conv))


def test_a_draft_head_of_other_weights_is_refused(tmp_path: Path, small_weights: Weights) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no draft head: draft\.npz"):
        load_draft(tmp_path, small_weights)
    tensors = head_tensors(small_weights.config)
    pack(tmp_path / FILE, {"target_sha256": "0" * 64}, tensors)
    with pytest.raises(ValueError, match=rf"sha256 0{{64}}, these have {small_weights.sha256}"):
        load_draft(tmp_path, small_weights)
    pack(tmp_path / FILE, {"target_sha256": small_weights.sha256}, tensors)
    loaded = load_draft(tmp_path, small_weights)
    assert loaded.keys() == tensors.keys()
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:1000])
    with pytest.raises(ValueError, match="is not a packed profile"):
        load_draft(tmp_path, small_weights)
