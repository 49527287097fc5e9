"""The MoE dimensions read from a config.json and from the shipped presets."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidelity.errors import UsageError
from fidelity.model_shapes import MoeShape, find, preset, read_config
from fidelity.paths import data_dir

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
CONFIG: dict[str, Any] = {
    "hidden_size": 2048,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
    "quantization_config": FP8,
}
PRESETS = sorted(path.stem for path in (data_dir("configs") / "models").glob("*.yaml"))


def dims(shape: MoeShape) -> tuple[int, ...]:
    return shape.hidden, shape.intermediate, shape.topk, shape.experts


def test_a_flat_config() -> None:
    shape = read_config(CONFIG, "m", "config.json")
    assert dims(shape) == (2048, 512, 8, 256)
    assert shape.shared == 512
    assert shape.fusable
    assert shape.safe_because is None


def test_a_nested_text_config_with_the_quantisation_outside() -> None:
    text = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
    nested = {"model_type": "vl", "hidden_size": 1, "text_config": text, "quantization_config": FP8}
    shape = read_config(nested, "m", "config.json")
    assert dims(shape) == (2048, 512, 8, 256)
    assert shape.safe_because is None


def test_other_names_of_the_same_things() -> None:
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    assert dims(read_config(config, "m", "c")) == (4096, 14336, 2, 8)
    config = {
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "quantization_config": FP8,
    }
    shape = read_config(config, "m", "c")
    assert dims(shape) == (7168, 2048, 8, 256)
    assert shape.fusable


@pytest.mark.parametrize(
    ("quantization", "says"),
    [
        (None, "not quantised"),
        ({}, "not quantised"),
        ({"quant_method": "fp8"}, "one scale per tensor or channel"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "[64, 64]"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "quark"}, "quark"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}}}}, "compressed"),
        ({"quant_method": "compressed-tensors", "config_groups": None}, "compressed"),
        ("fp8", "not quantised"),
    ],
)
def test_any_other_quantisation_is_safe_and_says_why(quantization: Any, says: str) -> None:
    shape = read_config({**CONFIG, "quantization_config": quantization}, "m", "c")
    assert says in (shape.safe_because or "")


def test_block_scaled_compressed_tensors_count() -> None:
    weights = {"strategy": "block", "block_structure": [128, 128]}
    quantization = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}
    assert read_config({**CONFIG, "quantization_config": quantization}, "m", "c").safe_because is None


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("num_experts", "no mixture of experts"),
        ("num_experts_per_tok", "no mixture of experts"),
        ("hidden_size", "no hidden_size"),
        ("moe_intermediate_size", "no moe_intermediate_size"),
    ],
)
def test_what_is_missing_is_named(missing: str, says: str) -> None:
    config = {key: value for key, value in CONFIG.items() if key != missing}
    with pytest.raises(UsageError) as caught:
        read_config(config, "m", "config.json")
    assert says in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["256", 2.5, True, -8, [256]])
def test_what_is_no_size_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"num_experts is .* not a positive whole number"):
        read_config({**CONFIG, "num_experts": value}, "m", "config.json")


def test_a_folder_a_file_and_a_preset(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert find(str(folder)).model == "My-Model"
    assert find(str(folder / "config.json")) == find(str(folder))
    assert find("Qwen/Qwen3.6-35B-A3B-FP8") == find("Qwen3.6-35B-A3B-FP8")


@pytest.mark.parametrize(
    ("text", "says"), [("{", "not JSON"), ("[1]", "top level"), ("{}", "no mixture of experts")]
)
def test_a_broken_config_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        find(str(tmp_path))
    assert str(path) in caught.value.message


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no model 'Qwen/Qwen3\.6-35B-A3B-FP9'") as caught:
        find("Qwen/Qwen3.6-35B-A3B-FP9")
    assert "did you mean 'Qwen3.6-35B-A3B-FP8" in (caught.value.hint or "")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_shape(name: str) -> None:
    shape = preset(name)
    assert shape is not None
    assert shape.safe_because is None
    assert shape.model == name


@pytest.mark.parametrize("name", ["", "embedded", "../gate", "nothing"])
def test_what_is_no_preset_is_none(name: str) -> None:
    assert preset(name) is None


@pytest.mark.parametrize(
    ("tp", "ep", "fused", "local"),
    [
        (1, 1, False, (512, 8, 256)),
        (4, 1, False, (128, 8, 256)),
        (4, 1, True, (128, 9, 257)),
        (8, 8, False, (512, 8, 32)),
        (8, 2, False, (128, 8, 128)),
    ],
)
def test_one_ranks_share(tp: int, ep: int, fused: bool, local: tuple[int, int, int]) -> None:
    found = read_config(CONFIG, "m", "c").local(tp, ep, fused=fused)
    assert (found.intermediate, found.topk, found.experts) == local


@pytest.mark.parametrize(
    ("tp", "ep", "says"),
    [
        (3, 1, "TP 3 does not divide m: 512 MoE columns on 3 ranks"),
        (0, 1, "does not divide"),
        (4, 3, "EP 3 does not divide TP 4"),
        (512, 512, "EP 512 does not divide the 256 experts"),
    ],
)
def test_what_does_not_divide_is_refused(tp: int, ep: int, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(CONFIG, "m", "c").local(tp, ep)
    assert says in caught.value.message
