"""Write the weights as a Hugging Face folder that transformers and real serving engines load."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import safetensors_io
from .chat import TEMPLATE
from .weights import Config, Weights

TRANSFORMERS_VERSION = "5.8.0"  # the oldest release that resumes a cached linear-attention state rightly


def export(weights: Weights, directory: Path) -> None:
    """Write config, float32 weights, tokenizer and chat template into ``directory``, made if missing.

    Raises OSError when the directory cannot be written, FileNotFoundError without a tokenizer.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads(weights.tokenizer.read_text(encoding="utf-8"))
    specials = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    stop = specials.get("<|im_end|>")
    _write_json(directory / "config.json", checkpoint_config(weights.config, stop))
    _write_json(
        directory / "generation_config.json",
        {"eos_token_id": stop, "transformers_version": TRANSFORMERS_VERSION, "use_cache": True},
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "backend": "tokenizers",
            "chat_template": TEMPLATE,
            "eos_token": "<|im_end|>",
            "extra_special_tokens": ["<|im_start|>"],
            "model_max_length": weights.config.max_position_embeddings,
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    shutil.copyfile(weights.tokenizer, directory / "tokenizer.json")
    safetensors_io.write(directory / "model.safetensors", weights.tensors)


def checkpoint_config(config: Config, eos_token_id: int | None) -> dict[str, Any]:
    """The config.json of a ``Qwen3NextForCausalLM``; positions are described both ways that engines read."""
    values = asdict(config)
    rope = {key: values[key] for key in ("partial_rotary_factor", "rope_theta")}
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        **values,
        "layer_types": list(config.layer_types),
        "full_attention_interval": config.layer_types.index("full_attention") + 1,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", **rope},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "decoder_sparse_step": 1,
        "dtype": "float32",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": config.shared_expert_intermediate_size,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "transformers_version": TRANSFORMERS_VERSION,
        "use_cache": True,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
