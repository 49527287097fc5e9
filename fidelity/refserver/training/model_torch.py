"""The model in plain torch, for training: the arithmetic of transformers' `Qwen3NextForCausalLM`, head tied.

Gated DeltaNet (Yang, Kautz, Hatamizadeh, arXiv 2412.06464) in chunks of 64 tokens, full attention with an
output gate, a mixture of experts beside a shared one. A test compares it with transformers' own.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK: Final = 64


@dataclass(frozen=True)
class Shape:
    """The keys of a Hugging Face config that decide the arithmetic."""

    hidden_size: int = 128
    num_hidden_layers: int = 4
    layer_types: tuple[str, ...] = ("linear_attention",) * 3 + ("full_attention",)
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

    def config(self) -> dict[str, Any]:
        """As a JSON-like dict; `tied` says that the head is stored once, with the embedding."""
        return asdict(self) | {"layer_types": list(self.layer_types), "tied": True}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, times `weight` as it stands."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class Norm(nn.Module):
    """Zero-centred RMS norm: the stored weight is what is added to 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, 1 + self.weight, self.eps)


class GatedNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps) * functional.silu(gate)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A [..., n, n]; its gradient is two products, not a solve."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
        inverse = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grads[0] @ transposed).tril(-1)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule over whole chunks.

    q, k [B, Hk, T, dk] of length 1 (q already scaled), v [B, Hk, R, T, dv] with R value heads a key head,
    g (log decay) and beta [B, Hk, R, T]; T is a multiple of 64. Returns [B, Hk, R, T, dv].
    """
    batch, heads, repeat, length, dv = v.shape
    chunks, dk = length // CHUNK, q.shape[-1]
    q = q.view(batch, heads, 1, chunks, CHUNK, dk)
    k = k.view(batch, heads, 1, chunks, CHUNK, dk)
    v = v.reshape(batch, heads, repeat, chunks, CHUNK, dv)
    beta = beta.reshape(batch, heads, repeat, chunks, CHUNK, 1)
    decay = g.reshape(batch, heads, repeat, chunks, CHUNK).cumsum(-1)
    pair = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril()
    inverse = UnitLowerInverse.apply((k @ k.transpose(-1, -2) * pair * beta).tril(-1))
    grown = decay.exp().unsqueeze(-1)
    new_v = inverse @ (v * beta)
    read_k = inverse @ (k * beta * grown)
    local = q @ k.transpose(-1, -2) * pair
    q_state = q * grown
    k_state = (k * (decay[..., -1:] - decay).exp().unsqueeze(-1)).transpose(-1, -2)
    whole = decay[..., -1].exp()[..., None, None]
    state = v.new_zeros(batch, heads, repeat, dk, dv)
    out = []
    # unbind, as the gradient of one slice after the other would be a whole tensor of zeros each
    for parts in zip(*(t.unbind(3) for t in (new_v, read_k, local, q_state, k_state, whole)), strict=True):
        v_c, read_c, local_c, q_c, k_c, whole_c = parts
        fresh = v_c - read_c @ state
        out.append(q_c @ state + local_c @ fresh)
        state = state * whole_c + k_c @ fresh
    return torch.stack(out, 3).view(batch, heads, repeat, length, dv)


class DeltaNet(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        keys = s.linear_num_key_heads * s.linear_key_head_dim
        values = s.linear_num_value_heads * s.linear_value_head_dim
        self.in_proj_qkvz = nn.Linear(s.hidden_size, 2 * keys + 2 * values, bias=False)
        self.in_proj_ba = nn.Linear(s.hidden_size, 2 * s.linear_num_value_heads, bias=False)
        channels = 2 * keys + values
        self.conv1d = nn.Conv1d(channels, channels, s.linear_conv_kernel_dim, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(s.linear_num_value_heads))
        self.A_log = nn.Parameter(torch.zeros(s.linear_num_value_heads))
        self.norm = GatedNorm(s.linear_value_head_dim, s.rms_norm_eps)
        self.out_proj = nn.Linear(values, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s = self.s
        batch, length, _ = x.shape
        heads, dk, dv = s.linear_num_key_heads, s.linear_key_head_dim, s.linear_value_head_dim
        repeat = s.linear_num_value_heads // heads
        q, k, v, z = (
            self.in_proj_qkvz(x).view(batch, length, heads, -1).split([dk, dk, repeat * dv, repeat * dv], -1)
        )
        b, a = self.in_proj_ba(x).view(batch, length, heads, 2 * repeat).split(repeat, -1)
        mixed = torch.cat([part.reshape(batch, length, -1) for part in (q, k, v)], -1)
        # A depthwise convolution of 4 taps is 4 shifted products; torch's own grouped one is slower on a CPU.
        taps = self.conv1d.weight[:, 0]
        width = taps.shape[1]
        padded = functional.pad(mixed, (0, 0, width - 1, 0))
        mixed = functional.silu(sum(padded[:, i : i + length] * taps[:, i] for i in range(width)))
        q, k, v = mixed.split([heads * dk, heads * dk, heads * repeat * dv], -1)
        q = unit(q.view(batch, length, heads, dk)).transpose(1, 2) * dk**-0.5
        k = unit(k.view(batch, length, heads, dk)).transpose(1, 2)
        v = v.view(batch, length, heads, repeat, dv).permute(0, 2, 3, 1, 4)
        g = (-self.A_log.exp() * functional.softplus(a.reshape(batch, length, -1) + self.dt_bias)).view_as(a)
        out = gated_delta(q, k, v, g.permute(0, 2, 3, 1), b.sigmoid().permute(0, 2, 3, 1))
        out = self.norm(out.permute(0, 3, 1, 2, 4), z.view(batch, length, heads, repeat, dv))
        return self.out_proj(out.reshape(batch, length, -1))


def unit(x: Tensor) -> Tensor:
    """Scale the last axis to length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden_size, 2 * s.num_attention_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.num_attention_heads * s.head_dim, s.hidden_size, bias=False)
        self.q_norm = Norm(s.head_dim, s.rms_norm_eps)
        self.k_norm = Norm(s.head_dim, s.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        s = self.s
        batch, length, _ = x.shape
        q, gate = self.q_proj(x).view(batch, length, s.num_attention_heads, 2 * s.head_dim).chunk(2, -1)
        k = self.k_proj(x).view(batch, length, s.num_key_value_heads, s.head_dim)
        v = self.v_proj(x).view(batch, length, s.num_key_value_heads, s.head_dim).transpose(1, 2)
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2)
        q, k = rotate(q, s), rotate(k, s)
        repeat = s.num_attention_heads // s.num_key_value_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj((out * gate.sigmoid()).reshape(batch, length, -1))


def rotate(x: Tensor, s: Shape) -> Tensor:
    """Rotary position embedding on the first part of each head; x [B, H, T, head_dim]."""
    size = int(s.head_dim * s.partial_rotary_factor)
    frequency = s.rope_theta ** -(torch.arange(0, size, 2, device=x.device) / size)
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * torch.cat([frequency, frequency])
    head, rest = x[..., :size], x[..., size:]
    turned = torch.cat([-head[..., size // 2 :], head[..., : size // 2]], -1)
    return torch.cat([head * angle.cos() + turned * angle.sin(), rest], -1)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class SparseMoe(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.top = s.num_experts_per_tok
        self.gate = nn.Linear(s.hidden_size, s.num_experts, bias=False)
        self.experts = nn.ModuleList(
            Mlp(s.hidden_size, s.moe_intermediate_size) for _ in range(s.num_experts)
        )
        self.shared_expert = Mlp(s.hidden_size, s.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(s.hidden_size, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weight, chosen = self.gate(x).softmax(-1).topk(self.top, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).reshape(-1)
        # Sorted by expert, every expert's tokens are one slice.
        order = chosen.reshape(-1).argsort(stable=True)
        rows = order // self.top
        counts = chosen.reshape(-1).bincount(minlength=len(self.experts)).tolist()
        parts = x[rows].split(counts)
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        out = torch.zeros_like(x).index_add(0, rows, out * weight[order, None])
        return (out + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)).view(shape)


class Layer(nn.Module):
    def __init__(self, s: Shape, kind: str) -> None:
        super().__init__()
        self.input_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.post_attention_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        if kind == "linear_attention":
            self.linear_attn = DeltaNet(s)
        else:
            self.self_attn = Attention(s)
        self.mlp = SparseMoe(s)
        self.full = kind != "linear_attention"

    def forward(self, x: Tensor, keep_attention: Tensor | None) -> Tensor:
        mixed = (self.self_attn if self.full else self.linear_attn)(self.input_layernorm(x))
        if self.full and keep_attention is not None:
            mixed = mixed * keep_attention[:, None, None]
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


class QuizModel(nn.Module):
    """Token ids [B, T] (T a multiple of 64) to the last hidden states; `logits` applies the tied head."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s, kind) for kind in s.layer_types)
        self.norm = Norm(s.hidden_size, s.rms_norm_eps)

    def forward(self, ids: Tensor, keep_attention: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, keep_attention)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embed_tokens.weight.T

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the names of a Hugging Face `Qwen3NextForCausalLM`, the head included."""
        named = {f"model.{name}": tensor.detach() for name, tensor in self.state_dict().items()}
        return named | {"lm_head.weight": self.embed_tokens.weight.detach()}
