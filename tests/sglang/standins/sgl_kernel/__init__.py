"""Plain-torch stand-in for the CPU build of sgl_kernel (which needs AVX-512 and AMX, and is not published).

Only what a small Qwen3-Next model calls: the gated delta rule, its causal convolution, the gated norm and the
request-to-token table. One token at a time: clear, not fast. In shapes: T tokens, H key and HV value heads,
head dims K and V.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

CHECKPOINT_EVERY = 64  # tokens


class _Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{self._name} is not part of this stand-in")


def __getattr__(name: str) -> _Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def _scan(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, normalise: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The gated delta rule over one sequence.

    q, k [T, H, K]; v [T, HV, V]; g, beta [T, HV]; state [HV, V, K] float32. Returns the output [T, HV, V],
    the last state, and the states before tokens 0, 64, 128, …
    """
    q, k, v, g, beta = (t.float() for t in (q, k, v, g, beta))
    if normalise:
        q, k = _unit(q), _unit(k)
    repeat = v.shape[1] // q.shape[1]
    q = q.repeat_interleave(repeat, 1) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(repeat, 1)
    decay = g.exp()[..., None, None]
    out = torch.empty_like(v)
    checkpoints = []
    for t in range(v.shape[0]):
        if t % CHECKPOINT_EVERY == 0:
            checkpoints.append(state.clone())
        state = state * decay[t]
        delta = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + delta[..., None] * k[t][:, None, :]
        out[t] = torch.einsum("hvk,hk->hv", state, q[t])
    return out, state, checkpoints


def _sequences(bounds: Tensor, slots: Tensor) -> Iterator[tuple[int, int, int]]:
    """(slot, start, end) of each non-empty sequence; `bounds` are cumulative, a negative slot is padding."""
    ends = bounds.tolist()
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0 and ends[i + 1] > ends[i]:
            yield slot, ends[i], ends[i + 1]


def fused_gdn_gating_cpu(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """(log decay g, write strength beta), each [1, T, HV]."""
    g = -A_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return g.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
    **_: Any,
) -> tuple[Tensor, None, Tensor]:
    """Prefill. The third value, [1, checkpoints, HV, V, K], serves extra_buffer; the real one gives None."""
    out = torch.empty_like(v)
    checkpoints: list[Tensor] = []
    for slot, start, end in _sequences(cu_seqlens, initial_state_indices):
        part = slice(start, end)
        rows = (q[0, part], k[0, part], v[0, part], g[0, part], beta[0, part])
        y, state, states = _scan(*rows, initial_state[slot].float(), use_qk_l2norm_in_kernel)
        out[0, part] = y.to(out.dtype)
        initial_state[slot] = state.to(initial_state.dtype)
        checkpoints += states
    return out, None, torch.stack(checkpoints).unsqueeze(0)


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    **_: Any,
) -> Tensor:
    """Decode: one token a sequence; the states are updated in place."""
    g, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    out = torch.empty_like(v)
    for slot, start, end in _sequences(cu_seqlens, initial_state_indices):
        part = slice(start, end)
        rows = (q[0, part], k[0, part], v[0, part], g[0, part], beta[0, part])
        y, state, _states = _scan(*rows, initial_state_source[slot].float(), use_qk_l2norm_in_kernel)
        out[0, part] = y.to(out.dtype)
        initial_state_source[slot] = state.to(initial_state_source.dtype)
    return out


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, activation: Any
) -> tuple[Tensor, Tensor]:
    """x [channels, T], weight [channels, W], past [channels, W-1] -> output as x, and the new past."""
    full = torch.cat([past.to(x.dtype), x], 1)
    bias = None if bias is None else bias.float()
    y = functional.conv1d(
        full.float().unsqueeze(0), weight.float().unsqueeze(1), bias, groups=weight.shape[0]
    )[0]
    if activation in ("silu", "swish", True):
        y = functional.silu(y)
    return y.to(x.dtype), full[:, -past.shape[1] :]


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Any = None,
    conv_states: Any = None,
    has_initial_state: Tensor | None = None,
    cache_indices: Any = None,
    query_start_loc: Any = None,
    **_: Any,
) -> Tensor:
    """Prefill convolution over x [channels, T of all sequences]; the states are updated in place."""
    out = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    known = [False] * (len(bounds) - 1) if has_initial_state is None else has_initial_state.tolist()
    for i, slot in enumerate(cache_indices.tolist()):
        part = slice(bounds[i], bounds[i + 1])
        past = conv_states[slot] if known[i] else torch.zeros_like(conv_states[slot])
        out[:, part], conv_states[slot] = _convolve(x[:, part], weight, bias, past, activation)
    return out


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Any = None,
    conv_state_indices: Any = None,
    **_: Any,
) -> Tensor:
    """Decode convolution over x [sequences, channels]; the states are updated in place."""
    out = torch.empty_like(x)
    for i, slot in enumerate(conv_state_indices.tolist()):
        if slot < 0:
            continue
        y, conv_states[slot] = _convolve(x[i].unsqueeze(1), weight, bias, conv_states[slot], activation)
        out[i] = y[:, 0]
    return out


def fused_rmsnorm_gated_cpu(x: Tensor, weight: Tensor, z: Tensor, eps: float) -> Tensor:
    """RMS norm of x [.., V], scaled by `weight` [V] and by silu(z)."""
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float() * functional.silu(z.float())
    return f.to(x.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache slots into its row of the request-to-token table."""
    at = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[at : at + last - first].to(req_to_token.dtype)
        at += last - first


for _function in (
    fused_gdn_gating_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
    fused_rmsnorm_gated_cpu,
):
    setattr(torch.ops.sgl_kernel, _function.__name__, _function)
