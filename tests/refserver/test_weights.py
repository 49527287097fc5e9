import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fidelity.refserver import safetensors_io
from fidelity.refserver.weights import EMBED, HEAD, Config, Weights, load, pack


def packed(folder: Path, weights: Weights, **changed: np.ndarray) -> Weights:
    folder.mkdir(exist_ok=True)
    pack(folder / "weights.npz", asdict(weights.config), weights.tensors | changed)
    (folder / "card.json").write_text(json.dumps({"name": "packed"}))
    return load(folder)


def test_pack_and_load_round_trip(tmp_path: Path, small_weights: Weights) -> None:
    loaded = packed(tmp_path, small_weights)
    assert loaded.config == small_weights.config
    assert loaded.card == {"name": "packed"}
    assert loaded.tensors.keys() == small_weights.tensors.keys()
    for name, tensor in small_weights.tensors.items():
        got = loaded.tensors[name]
        assert got.dtype == np.float32
        assert got.shape == tensor.shape
        if tensor.ndim < 2 or tensor.size <= 4096:
            np.testing.assert_array_equal(got, tensor)
        else:
            step = np.abs(tensor).max(axis=1, keepdims=True) / 127
            assert (np.abs(got - tensor) <= 0.57 * step).all()  # half a step, the scale rounded to float16
            assert not np.array_equal(got, tensor)


def test_packing_twice_changes_nothing(tmp_path: Path, small_weights: Weights) -> None:
    once = packed(tmp_path / "once", small_weights)
    assert packed(tmp_path / "again", small_weights).sha256 == once.sha256
    twice = packed(tmp_path / "twice", once)
    for name, tensor in once.tensors.items():
        np.testing.assert_allclose(twice.tensors[name], tensor, rtol=1e-3, atol=1e-6)


def test_a_tied_head_is_stored_once(tmp_path: Path, small_weights: Weights) -> None:
    untied = packed(tmp_path / "untied", small_weights)
    tied = packed(tmp_path / "tied", small_weights, **{HEAD: small_weights.tensors[EMBED]})
    assert np.array_equal(tied.tensors[HEAD], tied.tensors[EMBED])
    assert not np.array_equal(untied.tensors[HEAD], untied.tensors[EMBED])
    with np.load(tmp_path / "tied" / "weights.npz") as archive:
        assert HEAD not in archive.files
    assert tied.config.tie_word_embeddings is False


def test_a_row_of_zeros_stays_zero(tmp_path: Path, small_weights: Weights) -> None:
    embedding = small_weights.tensors[EMBED].copy()
    embedding[3] = 0
    loaded = packed(tmp_path, small_weights, **{EMBED: embedding})
    assert not loaded.tensors[EMBED][3].any()
    assert loaded.tensors[EMBED][4].any()


def test_a_hugging_face_folder_loads(tmp_path: Path, small_weights: Weights) -> None:
    raw = asdict(small_weights.config)
    rope = {"rope_theta": raw.pop("rope_theta"), "partial_rotary_factor": raw.pop("partial_rotary_factor")}
    raw |= {"rope_parameters": rope, "model_type": "qwen3_next"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    without_head = {k: v for k, v in small_weights.tensors.items() if k != HEAD}
    safetensors_io.write(tmp_path / "model.safetensors", without_head)
    loaded = load(str(tmp_path))
    assert loaded.config == small_weights.config
    assert np.array_equal(loaded.tensors[HEAD], small_weights.tensors[EMBED])
    for name, tensor in without_head.items():
        assert np.array_equal(loaded.tensors[name], tensor)


def test_the_random_profile_is_seeded() -> None:
    first, second = load("random"), load("random")
    assert first.sha256 == second.sha256
    assert first.config == Config()
    assert all(np.array_equal(first.tensors[name], t) for name, t in second.tensors.items())


def test_config_works_out_layer_types() -> None:
    config = Config.from_dict({"num_hidden_layers": 6, "full_attention_interval": 3})
    assert [kind[0] for kind in config.layer_types] == ["l", "l", "f"] * 2
    with pytest.raises(ValueError, match="do not describe 2 layers"):
        Config.from_dict({"num_hidden_layers": 2, "layer_types": ["full_attention"]})
    with pytest.raises(ValueError, match="do not describe 1 layers"):
        Config.from_dict({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})


def test_an_unknown_profile_says_what_there_is() -> None:
    with pytest.raises(FileNotFoundError, match=r"no profile 'quizz'.*random.*weights\.npz"):
        load("quizz")


def test_damaged_files_are_named(tmp_path: Path, small_weights: Weights) -> None:
    packed(tmp_path, small_weights)
    whole = (tmp_path / "weights.npz").read_bytes()
    (tmp_path / "weights.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"weights\.npz is not a packed profile"):
        load(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    np.savez(other / "weights.npz", something=np.zeros(3))
    with pytest.raises(ValueError, match=r"weights\.npz is not a packed profile"):
        load(other)
