import json
from pathlib import Path

import numpy as np
import pytest

from fidelity.refserver.chat import render
from fidelity.refserver.export import export
from fidelity.refserver.model import Model, Segment
from fidelity.refserver.moe import Experts
from fidelity.refserver.random_profile import random_weights
from fidelity.refserver.weights import PROFILES, Config, Weights, load

PRESENT = sorted(path.parent.name for path in PROFILES.glob("*/weights.npz"))


def test_the_folder_loads_again(tmp_path: Path, small_weights: Weights) -> None:
    export(small_weights, tmp_path / "new" / "folder")
    loaded = load(tmp_path / "new" / "folder")
    assert loaded.config == small_weights.config
    assert loaded.tokenizer == tmp_path / "new" / "folder" / "tokenizer.json"
    assert loaded.tokenizer.read_bytes() == small_weights.tokenizer.read_bytes()
    assert loaded.tensors.keys() == small_weights.tensors.keys()
    for name, tensor in small_weights.tensors.items():
        assert np.array_equal(loaded.tensors[name], tensor)


def test_the_config_names_what_engines_read(tmp_path: Path, small_weights: Weights) -> None:
    export(small_weights, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3NextForCausalLM"]
    assert config["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": config["rope_theta"],
        "partial_rotary_factor": config["partial_rotary_factor"],
    }
    assert config["full_attention_interval"] == 4
    assert config["tie_word_embeddings"] is False
    assert config["eos_token_id"] == 2045
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2045


def test_the_tokenizer_renders_the_template(tmp_path: Path, small_weights: Weights) -> None:
    from transformers import AutoTokenizer

    export(small_weights, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "system", "content": "Hi."}, {"role": "user", "content": "1 + 1?"}]
    for thinking in (True, False):
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert text == render(messages, enable_thinking=thinking)
    assert tokenizer.eos_token_id == 2045
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") == 2044
    assert tokenizer.decode([0]) == "!"


@pytest.mark.reference
@pytest.mark.parametrize("profile", ["random", "two key heads", *PRESENT])
def test_transformers_agrees(tmp_path: Path, profile: str) -> None:
    import torch
    from transformers import Qwen3NextForCausalLM

    shape = Config(
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        norm_topk_prob=False,
    )
    weights = random_weights(shape, seed=2) if profile == "two key heads" else load(profile)
    export(weights, tmp_path)
    reference = Qwen3NextForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = Model(weights, Experts())
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, weights.config.vocab_size, 193)
    repeated = np.concatenate([drawn[:60], np.full(133, drawn[60])])
    for ids in (drawn, repeated):
        with torch.no_grad():
            expected = reference(torch.tensor(ids)[None]).logits[0].numpy()
        (result,) = model.forward([Segment(ids, model.empty(), logits_from=0)])
        assert np.abs(result.logits - expected).max() < 1e-3
        assert (result.logits.argmax(axis=1) == expected.argmax(axis=1)).all()
