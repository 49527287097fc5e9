"""Write a tiny random Qwen3-Next checkpoint (gated delta rule, full attention, mixture of experts; 18 MB).

usage: make_model.py FOLDER [--seed N]          (needs torch and safetensors)

The weights are scaled so that the next-token distribution has a clear favourite and depends on the whole
prompt; it is never as sure as a trained model. The tokenizer has one token per byte in GPT-2's byte order, so
id 0 is "!" as in the Qwen vocabularies.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, FULL_ATTENTION_EVERY, VOCABULARY = 256, 4, 4, 512
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 128
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_DIM, CONVOLUTION = 2, 4, 128, 4
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_WIDTH = 16, 4, 128
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "full_attention_interval": FULL_ATTENTION_EVERY,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "linear_conv_kernel_dim": CONVOLUTION,
    "linear_key_head_dim": LINEAR_DIM,
    "linear_value_head_dim": LINEAR_DIM,
    "linear_num_key_heads": LINEAR_KEY_HEADS,
    "linear_num_value_heads": LINEAR_VALUE_HEADS,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "norm_topk_prob": True,
    "moe_intermediate_size": EXPERT_WIDTH,
    "shared_expert_intermediate_size": EXPERT_WIDTH,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "use_cache": True,
}

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)


def byte_characters() -> list[str]:
    """GPT-2's printable character for each byte, in vocabulary order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = len(set(range(256)) - set(printable))
    return [chr(c) for c in (*printable, *range(256, 256 + others))]


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, with the chat template."""
    added = [
        {
            "id": 256 + i,
            "content": SPECIAL[i] if i < len(SPECIAL) else f"<{256 + i}>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": i < len(SPECIAL),
        }
        for i in range(VOCABULARY - 256)
    ]
    bytes_as_text = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": bytes_as_text,
        "post_processor": None,
        "decoder": bytes_as_text,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: i for i, character in enumerate(byte_characters())},
            "merges": [],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def random_weights(seed: int) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint by its Hugging Face name; bfloat16, A_log float32."""
    generator = torch.Generator().manual_seed(seed)

    def linear(out: int, inp: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(out, inp, generator=generator) * (gain / inp**0.5)

    weights: dict[str, torch.Tensor] = {}
    key, value = LINEAR_KEY_HEADS * LINEAR_DIM, LINEAR_VALUE_HEADS * LINEAR_DIM
    weights["model.embed_tokens.weight"] = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    for n in range(LAYERS):
        layer = f"model.layers.{n}."
        weights[layer + "input_layernorm.weight"] = torch.zeros(HIDDEN)
        weights[layer + "post_attention_layernorm.weight"] = torch.zeros(HIDDEN)
        if (n + 1) % FULL_ATTENTION_EVERY:
            a = layer + "linear_attn."
            weights[a + "in_proj_qkvz.weight"] = linear(2 * key + 2 * value, HIDDEN)
            weights[a + "in_proj_ba.weight"] = linear(2 * LINEAR_VALUE_HEADS, HIDDEN)
            weights[a + "conv1d.weight"] = (
                torch.randn(2 * key + value, 1, CONVOLUTION, generator=generator) * 0.5
            )
            weights[a + "A_log"] = torch.rand(LINEAR_VALUE_HEADS, generator=generator).mul(4).add(0.05).log()
            # a small step keeps the decay slow, so that the state remembers the whole prompt
            weights[a + "dt_bias"] = torch.rand(LINEAR_VALUE_HEADS, generator=generator) * 4 - 6
            weights[a + "norm.weight"] = torch.ones(LINEAR_DIM)
            weights[a + "out_proj.weight"] = linear(HIDDEN, value)
        else:
            a = layer + "self_attn."
            weights[a + "q_proj.weight"] = linear(2 * HEADS * HEAD_DIM, HIDDEN)
            weights[a + "k_proj.weight"] = linear(KV_HEADS * HEAD_DIM, HIDDEN)
            weights[a + "v_proj.weight"] = linear(KV_HEADS * HEAD_DIM, HIDDEN)
            weights[a + "o_proj.weight"] = linear(HIDDEN, HEADS * HEAD_DIM)
            weights[a + "q_norm.weight"] = torch.zeros(HEAD_DIM)
            weights[a + "k_norm.weight"] = torch.zeros(HEAD_DIM)
        m = layer + "mlp."
        weights[m + "gate.weight"] = linear(EXPERTS, HIDDEN, 2.0)
        weights[m + "shared_expert_gate.weight"] = linear(1, HIDDEN)
        for name in ("shared_expert", *(f"experts.{e}" for e in range(EXPERTS))):
            weights[f"{m}{name}.gate_proj.weight"] = linear(EXPERT_WIDTH, HIDDEN, 1.5)
            weights[f"{m}{name}.up_proj.weight"] = linear(EXPERT_WIDTH, HIDDEN, 1.5)
            weights[f"{m}{name}.down_proj.weight"] = linear(HIDDEN, EXPERT_WIDTH, 1.5)
    weights["model.norm.weight"] = torch.zeros(HIDDEN)
    weights["lm_head.weight"] = linear(VOCABULARY, HIDDEN, 4.0)
    return {
        name: tensor.to(torch.float32 if name.endswith("A_log") else torch.bfloat16).contiguous()
        for name, tensor in weights.items()
    }


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")
    (given.folder / "generation_config.json").write_text(
        '{"eos_token_id": 258, "do_sample": false}', encoding="utf-8"
    )
    write_tokenizer(given.folder)
    save_file(random_weights(given.seed), given.folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
