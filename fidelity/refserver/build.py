"""From a checkpoint's tensors to the layers' weights: transposed, joined and reordered once, at load."""

from dataclasses import dataclass

import numpy as np

from .attention import AttentionWeights
from .gdn import GdnWeights
from .layers import Array
from .moe import MoeWeights
from .weights import Config, Weights


@dataclass(frozen=True)
class Layer:
    """One decoder layer; norms are zero-centred in the checkpoint and hold 1 + w here."""

    input_norm: Array
    post_norm: Array
    mixer: GdnWeights | AttentionWeights
    moe: MoeWeights


def build_layers(weights: Weights) -> list[Layer]:
    """The decoder layers in order. Raises KeyError when the checkpoint lacks a tensor."""
    layers = []
    for i, kind in enumerate(weights.config.layer_types):
        prefix = f"model.layers.{i}."
        t = {k[len(prefix) :]: v for k, v in weights.tensors.items() if k.startswith(prefix)}
        mixer = _gdn(t, weights.config) if kind == "linear_attention" else _attention(t, weights.config)
        layers.append(
            Layer(
                1 + t["input_layernorm.weight"],
                1 + t["post_attention_layernorm.weight"],
                mixer,
                build_moe(t, weights.config),
            )
        )
    return layers


def _columns(*matrices: Array) -> Array:
    """Matrices [out, in] as one [in, sum of out]."""
    return np.ascontiguousarray(np.concatenate(matrices).T)


def _gdn(t: dict[str, Array], c: Config) -> GdnWeights:
    """The checkpoint keeps q, k, v, z (and b, a) per key head; here all q come first, then all k, ..."""
    heads, dk, dv = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
    group = c.linear_num_value_heads // heads

    def regroup(name: str, widths: list[int]) -> list[Array]:
        rows = t[f"linear_attn.{name}.weight"].reshape(heads, sum(widths), -1)
        parts = np.split(rows, np.cumsum(widths)[:-1], axis=1)
        return [part.reshape(-1, rows.shape[-1]) for part in parts]

    qkvz = regroup("in_proj_qkvz", [dk, dk, group * dv, group * dv])
    ba = regroup("in_proj_ba", [group, group])
    return GdnWeights(
        key_heads=heads,
        value_heads=c.linear_num_value_heads,
        key_dim=dk,
        value_dim=dv,
        project=_columns(*qkvz, *ba),
        conv=_columns(t["linear_attn.conv1d.weight"][:, 0]),
        decay=-np.exp(t["linear_attn.A_log"]),
        dt_bias=t["linear_attn.dt_bias"],
        norm=t["linear_attn.norm.weight"],
        out=_columns(t["linear_attn.out_proj.weight"]),
        eps=c.rms_norm_eps,
    )


def _attention(t: dict[str, Array], c: Config) -> AttentionWeights:
    """The checkpoint keeps each head's query and gate together; here all queries come first."""
    q_proj = t["self_attn.q_proj.weight"].reshape(c.num_attention_heads, 2, c.head_dim, -1)
    queries, gates = (q_proj[:, part].reshape(-1, q_proj.shape[-1]) for part in (0, 1))
    rotary = int(c.head_dim * c.partial_rotary_factor)
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    return AttentionWeights(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        project=_columns(queries, gates, t["self_attn.k_proj.weight"], t["self_attn.v_proj.weight"]),
        q_norm=1 + t["self_attn.q_norm.weight"],
        k_norm=1 + t["self_attn.k_norm.weight"],
        out=_columns(t["self_attn.o_proj.weight"]),
        frequencies=(1 / np.float32(c.rope_theta) ** exponents).astype(np.float32),
        eps=c.rms_norm_eps,
    )


def build_moe(t: dict[str, Array], c: Config) -> MoeWeights:
    """The experts of one layer from its tensors, `mlp.experts.0.gate_proj.weight` and so on."""

    def expert(name: str) -> tuple[Array, Array]:
        first = _columns(t[f"mlp.{name}.gate_proj.weight"], t[f"mlp.{name}.up_proj.weight"])
        return first, _columns(t[f"mlp.{name}.down_proj.weight"])

    stages = [expert(f"experts.{e}") for e in range(c.num_experts)]
    shared1, shared2 = expert("shared_expert")
    return MoeWeights(
        top_k=c.num_experts_per_tok,
        renormalise=c.norm_topk_prob,
        router=_columns(t["mlp.gate.weight"]),
        stage1=np.stack([first for first, _ in stages]),
        stage2=np.stack([second for _, second in stages]),
        shared1=shared1,
        shared2=shared2,
        shared_gate=_columns(t["mlp.shared_expert_gate.weight"]),
    )
