"""Write a tiny random hybrid model as GGUF: three Gated DeltaNet layers and one of full attention, eight
experts of which two are used (architecture qwen3next). The same bytes every time; 34 MB. The tokenizer and
the chat template are those of another GGUF file.

    python make_hybrid.py SmolLM2-135M-Instruct.Q4_1.gguf tiny-hybrid.gguf [--nan]
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURE = "qwen3next"
LAYERS, FULL_ATTENTION_EVERY = 4, 4
WIDTH, CONTEXT = 128, 8192
HEADS, KV_HEADS, HEAD_SIZE = 4, 4, 64
EXPERTS, EXPERTS_USED, EXPERT_WIDTH = 8, 2, 64
CONV_KERNEL, KEY_HEADS, VALUE_HEADS, LINEAR_HEAD_SIZE = 4, 2, 4, 128
INNER = LINEAR_HEAD_SIZE * VALUE_HEADS
CONV_CHANNELS = 2 * LINEAR_HEAD_SIZE * KEY_HEADS + INNER
_SUFFIX = {"ssm_a": "", "ssm_dt": ".bias"}


def make(source: Path, target: Path, *, nan: bool = False) -> None:
    """With `nan`, the last norm's weights are NaN: every logprob is null."""
    reader = gguf.GGUFReader(source)
    vocabulary = len(reader.get_field("tokenizer.ggml.tokens").data)
    writer = gguf.GGUFWriter(target, ARCHITECTURE)
    _describe(writer)
    _copy_tokenizer(reader, writer)
    tensors = _tensors(vocabulary)
    if nan:
        tensors["output_norm.weight"] = np.full(WIDTH, np.nan, np.float32)
    for name, tensor in tensors.items():
        half = name in ("token_embd.weight", "output.weight")
        writer.add_tensor(name, tensor.astype(np.float16) if half else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny random qwen3next")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    writer.add_expert_shared_feed_forward_length(EXPERT_WIDTH)
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_state_size(LINEAR_HEAD_SIZE)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(INNER)
    writer.add_uint32(f"{ARCHITECTURE}.full_attention_interval", FULL_ATTENTION_EVERY)
    writer.add_rope_dimension_count(HEAD_SIZE // 4)
    writer.add_file_type(0)


def _copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            value: Any = field.contents()
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, field.types[0])


def _tensors(vocabulary: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def normal(*shape: int, std: float = 0.1) -> np.ndarray:
        return rng.normal(0, std, shape).astype(np.float32)

    tensors = {
        "token_embd.weight": normal(vocabulary, WIDTH, std=0.35),
        "output.weight": normal(vocabulary, WIDTH, std=0.35),
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        own = _experts(normal)
        if layer % FULL_ATTENTION_EVERY == FULL_ATTENTION_EVERY - 1:
            own |= _attention(normal)
        else:
            own |= _recurrent(normal, rng)
        tensors |= {f"blk.{layer}.{name}{_SUFFIX.get(name, '.weight')}": own[name] for name in own}
    return tensors


Normal = Callable[..., np.ndarray]


def _experts(normal: Normal) -> dict[str, np.ndarray]:
    return {
        "attn_norm": np.ones(WIDTH, np.float32),
        "post_attention_norm": np.ones(WIDTH, np.float32),
        "ffn_gate_inp": normal(EXPERTS, WIDTH),
        "ffn_gate_exps": normal(EXPERTS, EXPERT_WIDTH, WIDTH),
        "ffn_up_exps": normal(EXPERTS, EXPERT_WIDTH, WIDTH),
        "ffn_down_exps": normal(EXPERTS, WIDTH, EXPERT_WIDTH),
        "ffn_gate_shexp": normal(EXPERT_WIDTH, WIDTH),
        "ffn_up_shexp": normal(EXPERT_WIDTH, WIDTH),
        "ffn_down_shexp": normal(WIDTH, EXPERT_WIDTH),
        "ffn_gate_inp_shexp": normal(WIDTH),
    }


def _attention(normal: Normal) -> dict[str, np.ndarray]:
    return {
        "attn_q": normal(2 * HEADS * HEAD_SIZE, WIDTH),
        "attn_k": normal(KV_HEADS * HEAD_SIZE, WIDTH),
        "attn_v": normal(KV_HEADS * HEAD_SIZE, WIDTH),
        "attn_output": normal(WIDTH, HEADS * HEAD_SIZE),
        "attn_q_norm": np.ones(HEAD_SIZE, np.float32),
        "attn_k_norm": np.ones(HEAD_SIZE, np.float32),
    }


def _recurrent(normal: Normal, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "ssm_a": -np.exp(rng.uniform(0, 1.5, VALUE_HEADS)).astype(np.float32),
        "ssm_conv1d": normal(CONV_CHANNELS, CONV_KERNEL, std=0.5),
        "ssm_dt": np.ones(VALUE_HEADS, np.float32),
        "ssm_ba": normal(2 * VALUE_HEADS, WIDTH),
        "attn_qkv": normal(CONV_CHANNELS, WIDTH),
        "attn_gate": normal(INNER, WIDTH),
        "ssm_norm": np.ones(LINEAR_HEAD_SIZE, np.float32),
        "ssm_out": normal(WIDTH, INNER),
    }


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), nan="--nan" in sys.argv[3:])
