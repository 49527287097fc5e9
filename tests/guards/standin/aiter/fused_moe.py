"""Stage 1 of a fused MoE: its splits of K add into a buffer that is zeroed only where each owns two tiles.

The buffer comes from a pool that hands out what was given back, unzeroed, as a caching allocator does.
"""

import functools
import math
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aiter import ActivationType, QuantType

COMPUTE_UNITS = 256
BLOCK_SIZE_M = 32
quant_remap = {QuantType.per_128x128: QuantType.per_1x128}
_free: dict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """float32 memory of that shape, with whatever its last user left; a fresh process hands out zeros."""
    return _free[shape].pop() if _free[shape] else np.zeros(shape, np.float32)


def give_back(buffer: np.ndarray) -> None:
    _free[buffer.shape].append(buffer)


def silu_and_mul(gate_up: np.ndarray) -> np.ndarray:
    gate, up = np.split(gate_up, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def ck_moe_stage1_fwd(
    hidden_states: np.ndarray,
    w1: np.ndarray,
    chosen: np.ndarray,
    out: np.ndarray,
    kernel_name: str,
    block_m: int,
    blocks_of: int,
    splitk: int,
) -> None:
    """out [M, topk, 2I] (+)= hidden_states [M, K] @ w1[expert] [2I, K], tile by tile of K, split by split."""
    if block_m != blocks_of:
        raise ValueError(f"sorted into blocks of {blocks_of}, computed in blocks of {block_m}")
    k = hidden_states.shape[-1]
    named = kernel_name.split("x")[3].split("_")[0] if kernel_name else ""
    tile = int(named) if named else 256 if block_m <= 16 else 128
    tiles = k // (splitk * tile)
    if tiles > 1 and k % (splitk * tile):
        raise RuntimeError("K is not divisible by the split")
    if splitk <= 1:
        out[...] = np.einsum("mk,mtnk->mtn", hidden_states, w1[chosen])
        return
    if tiles > 1:
        out[...] = 0
    for part in np.array_split(np.arange(k), splitk):
        out += np.einsum("mk,mtnk->mtn", hidden_states[:, part], w1[chosen][..., part])


def ck_moe_stage1(
    hidden_states,
    w1,
    w2,
    sorted_token_ids,
    sorted_expert_ids,
    num_valid_ids,
    out,
    topk,
    block_m,
    a1_scale,
    w1_scale,
    kernelName="",
    sorted_weights=None,
    quant_type=QuantType.No,
    activation=ActivationType.Gelu,
    splitk=1,
    use_non_temporal_load=False,
    dtype=None,
):
    is_splitk = quant_type is QuantType.per_1x128 and splitk > 1
    scratch = empty((hidden_states.shape[0], topk, w1.shape[1]))
    chosen, blocks_of = sorted_expert_ids
    split = splitk if is_splitk else 1
    ck_moe_stage1_fwd(hidden_states, w1, chosen, scratch, kernelName, block_m, blocks_of, split)
    out[...] = silu_and_mul(scratch)
    give_back(scratch)
    return out


@functools.lru_cache(maxsize=2048)
def get_ksplit(token: int, topk: int, expert: int, inter_dim: int, model_dim: int) -> int:
    forced = int(os.environ.get("AITER_KSPLIT", "0"))
    if forced:
        return forced
    groups = token * topk * math.ceil(inter_dim / 128)
    if token * topk > expert or groups >= COMPUTE_UNITS:
        return 0
    fitting = (
        split
        for split in range(math.ceil(COMPUTE_UNITS / groups), 1, -1)
        if model_dim % split == 0 and model_dim // split % 256 == 0
    )
    return next(fitting, 0)


@dataclass
class MOEMetadata:
    stage1: Callable[..., Any]
    block_m: int
    ksplit: int
    run_1stage: bool = False


@functools.lru_cache(maxsize=2048)
def get_2stage_cfgs(token, model_dim, inter_dim, expert, topk, q_type, tuned_kernel=""):
    ksplit = get_ksplit(token, topk, expert, inter_dim, model_dim) if q_type is QuantType.per_1x128 else 0
    block_m = BLOCK_SIZE_M if q_type is not QuantType.per_1x128 else 64 if token > 32 else 16
    stage1 = functools.partial(
        ck_moe_stage1,
        kernelName=tuned_kernel,
        activation=ActivationType.Silu,
        quant_type=q_type,
        splitk=ksplit,
        use_non_temporal_load=False,
        dtype=None,
    )
    return MOEMetadata(stage1, block_m, ksplit)


def fused_moe(hidden_states, w1, w2, topk_weight, topk_ids, quant_type=QuantType.No, tuned_kernel=""):
    """[M, K] -> stage 1's output [M, topk, I]; stage 2 is left out, the fault is not in it."""
    rows, topk = topk_ids.shape
    quant_type = quant_remap.get(quant_type, quant_type)
    padded = 1 << (rows - 1).bit_length()
    config = get_2stage_cfgs(padded, w1.shape[2], w2.shape[2], w1.shape[0], topk, quant_type, tuned_kernel)
    block_m = int(config.block_m)
    sorted_expert_ids = (topk_ids, block_m)
    out = np.empty((rows, topk, w2.shape[2]), np.float32)
    return config.stage1(
        hidden_states,
        w1,
        w2,
        None,
        sorted_expert_ids,
        None,
        out,
        topk,
        block_m=block_m,
        a1_scale=None,
        w1_scale=None,
        sorted_weights=None,
    )
