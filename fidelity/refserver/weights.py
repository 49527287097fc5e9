"""Weights and their configuration: packed profiles, Hugging Face folders and the seeded random profile.

A profile is a folder with ``weights.npz`` and ``card.json``. In the npz, matrices are int8 with one float16
scale an output row (``NAME::scale``); vectors and small tensors stay float32; ``__config__`` holds JSON.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from . import safetensors_io
from .layers import Array

PROFILES = Path(__file__).parent / "profiles"
SMALL = 4096  # elements: tensors up to this size are not quantised
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Config:
    """The numbers of a ``Qwen3NextForCausalLM``, under the names of its config.json."""

    hidden_size: int = 128
    num_hidden_layers: int = 4
    layer_types: tuple[str, ...] = (*["linear_attention"] * 3, "full_attention")
    vocab_size: int = 2048
    head_dim: int = 64
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    partial_rotary_factor: float = 0.25
    rope_theta: float = 1e4
    rms_norm_eps: float = 1e-6
    linear_conv_kernel_dim: int = 4
    linear_num_key_heads: int = 1
    linear_num_value_heads: int = 2
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    norm_topk_prob: bool = True
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 8192

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Config":
        """Read a config.json; keys it does not know are ignored, as are layer types it can work out.

        Raises ValueError when the layer types do not fit the number of layers.
        """
        values = {**raw.get("rope_parameters", {}), **raw}
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        layers = known.get("num_hidden_layers", cls.num_hidden_layers)
        if known.get("layer_types") is None:
            interval = raw.get("full_attention_interval", 4)
            known["layer_types"] = [
                "linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)
            ]
        known["layer_types"] = tuple(known["layer_types"])
        if len(known["layer_types"]) != layers or set(known["layer_types"]) - {
            "linear_attention",
            "full_attention",
        }:
            raise ValueError(f"layer_types {known['layer_types']} do not describe {layers} layers")
        return cls(**known)


@dataclass(frozen=True)
class Weights:
    """A loaded model: tensors under their Hugging Face names, [out, in], float32.

    ``sha256`` is that of the weights file, or of the tensors where there is none.
    """

    config: Config
    tensors: dict[str, Array]
    card: dict[str, Any]
    sha256: str
    tokenizer: Path


def load(profile: str | Path) -> Weights:
    """Load a shipped profile by name, ``random``, or a folder (a profile or a Hugging Face checkpoint).

    Raises FileNotFoundError when there is no such profile or folder, ValueError when it cannot be read.
    """
    if profile == "random":
        from .random_profile import random_weights

        return random_weights(Config())
    folder = folder_of(profile)
    packed, checkpoint = folder / "weights.npz", folder / "model.safetensors"
    own_tokenizer = folder / "tokenizer.json"
    tokenizer = own_tokenizer if own_tokenizer.is_file() else PROFILES / "tokenizer.json"
    if packed.is_file():
        raw, tensors = unpack(packed)
        card_file = folder / "card.json"
        card = json.loads(card_file.read_text()) if card_file.is_file() else {"name": folder.name}
        if raw.get("tied"):
            tensors[HEAD] = tensors[EMBED]
        return Weights(Config.from_dict(raw), tensors, card, _sha256(packed.read_bytes()), tokenizer)
    if checkpoint.is_file():
        config = Config.from_dict(json.loads((folder / "config.json").read_text()))
        tensors = safetensors_io.read(checkpoint)
        if EMBED not in tensors:
            raise ValueError(f"{checkpoint} has no {EMBED}")
        tensors.setdefault(HEAD, tensors[EMBED])
        return Weights(config, tensors, {"name": folder.name}, _sha256(checkpoint.read_bytes()), tokenizer)
    known = sorted(p.parent.name for p in PROFILES.glob("*/weights.npz"))
    raise FileNotFoundError(
        f"no profile {str(profile)!r}: one of {', '.join([*known, 'random'])}, "
        "or a folder with weights.npz or with config.json and model.safetensors"
    )


def folder_of(profile: str | Path) -> Path:
    """The folder of a shipped profile by name, or the path itself."""
    shipped = PROFILES / str(profile)
    return shipped if shipped.is_dir() else Path(profile)


def pack(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    """Write ``weights.npz``: int8 matrices, one copy of the embedding where the head equals it."""
    tied = HEAD in tensors and np.array_equal(tensors[HEAD], tensors[EMBED])
    header = json.dumps({**config, "tied": tied}).encode()
    arrays: dict[str, Any] = {"__config__": np.frombuffer(header, np.uint8)}
    for name, tensor in tensors.items():
        if tied and name == HEAD:
            continue
        if tensor.ndim < 2 or tensor.size <= SMALL:
            arrays[name] = tensor.astype(np.float32)
        else:
            arrays[name], arrays[f"{name}::scale"] = _quantise(tensor)
    np.savez_compressed(path, **arrays)


def _quantise(tensor: Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """int8 rows and their float16 scales, max |row| / 127; the rounded scale is the one divided by."""
    rows = tensor.reshape(len(tensor), -1)
    scale = (np.abs(rows).max(axis=1) / 127).astype(np.float16)
    scale[scale == 0] = 1
    whole = np.rint(rows / scale.astype(np.float32)[:, None]).clip(-127, 127)
    return whole.astype(np.int8).reshape(tensor.shape), scale


def unpack(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The configuration and the float32 tensors that :func:`pack` wrote; ValueError for another file."""
    try:
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        raw = json.loads(arrays.pop("__config__").tobytes())
    except (BadZipFile, EOFError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a packed profile: {error}") from error
    tensors: dict[str, Array] = {}
    for name, array in arrays.items():
        if name.endswith("::scale"):
            continue
        tensors[name] = array.astype(np.float32)
        if f"{name}::scale" in arrays:
            scale = arrays[f"{name}::scale"].astype(np.float32)
            tensors[name] *= scale.reshape(-1, *[1] * (array.ndim - 1))
    return raw, tensors


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
