"""The stand-in for aiter: the same names and calls, in torch, with the fault of its split stage-1 GEMM.

A split adds its partial sums into a buffer. Where each split owns two K tiles or more the buffer is zeroed
first; with one tile it is not, and comes from memory that was used before.
"""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fidelity.kernel.layer import BLOCK, Tensor, dequantise, round_activations
from fidelity.shapes import TILE, split_of

QuantType = enum.Enum("QuantType", ["No", "per_1x128", "per_128x128"])


@dataclass
class Config:
    """What `get_2stage_cfgs` decides for a shape."""

    stage1: Callable[..., Tensor]
    block_m: int
    ksplit: int


class StandIn:
    """`clean` zeroes every buffer."""

    def __init__(self, units: int, *, clean: bool = False) -> None:
        self.units, self.clean = units, clean
        self.ck_moe_stage1: Callable[..., Tensor] = self._stage1
        self.get_2stage_cfgs = functools.lru_cache(maxsize=2048)(self._configure)

    def fused_moe(
        self,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weight: Tensor,
        rows: list[tuple[int, Tensor, Tensor]],
        w1_scale: Tensor,
        w2_scale: Tensor,
    ) -> Tensor:
        """[M, K] -> [M, K] in float32. `rows` are the sorted tokens (`layer.routing`): sorting them here
        would wait for the device."""
        m, topk = topk_weight.shape
        padded = 1 << (m - 1).bit_length()
        config = self.get_2stage_cfgs(padded, w1.shape[2], w2.shape[2], w1.shape[0], topk)
        out = torch.empty((m, topk, w2.shape[2]), dtype=torch.float32, device=w1.device)
        a1 = round_activations(hidden_states.float(), w1.dtype)
        block_m = config.block_m
        config.stage1(
            a1, w1, w2, None, rows, None, out, topk, block_m=block_m, a1_scale=None, w1_scale=w1_scale
        )
        a2 = round_activations(out, w1.dtype)
        y = torch.zeros((m, w1.shape[2]), dtype=torch.float32, device=w1.device)
        for expert, tokens, slots in rows:
            part = a2[tokens, slots] @ dequantise(w2[expert], w2_scale[expert]).T
            y[tokens] += part * topk_weight[tokens, slots, None]
        return y

    def _configure(self, token: int, hidden: int, intermediate: int, experts: int, topk: int) -> Config:
        ksplit = split_of(
            token,
            hidden=hidden,
            intermediate=intermediate,
            topk=topk,
            experts=experts,
            compute_units=self.units,
        ).splits
        # Bound here and kept in the cache, as aiter does: a later wrap is not seen until the cache clears.
        stage1 = functools.partial(
            self.ck_moe_stage1, kernelName="", quant_type=QuantType.per_1x128, splitk=ksplit, dtype=None
        )
        return Config(stage1, 16 if token <= 32 else 64, ksplit)

    def _stage1(
        self,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        sorted_token_ids: Any,
        sorted_expert_ids: Any,
        num_valid_ids: Any,
        out: Tensor,
        topk: int,
        block_m: int,
        a1_scale: Any,
        w1_scale: Tensor,
        kernelName: str = "",  # aiter's own name for it, which the guards read
        sorted_weights: Any = None,
        quant_type: Any = QuantType.No,
        activation: Any = None,
        splitk: int = 1,
        use_non_temporal_load: bool = False,
        dtype: Any = None,
    ) -> Tensor:
        depth = hidden_states.shape[-1]
        splits = splitk if quant_type is QuantType.per_1x128 and splitk > 1 else 1
        if depth % (splits * BLOCK):
            raise RuntimeError(f"K = {depth} cannot be split {splits} ways")
        shape = (hidden_states.shape[0], topk, w1.shape[1])
        sums = torch.empty(shape, dtype=torch.float32, device=w1.device)
        if self.clean or splits == 1 or depth // (splits * TILE) > 1:
            sums.zero_()
        width = depth // splits
        for expert, tokens, slots in sorted_expert_ids:
            weight, x = dequantise(w1[expert], w1_scale[expert]), hidden_states[tokens]
            for start in range(0, depth, width):
                sums[tokens, slots] += x[:, start : start + width] @ weight[:, start : start + width].T
        gate, up = sums.chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate) * up)
        return out
