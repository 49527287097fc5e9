"""One MoE layer of random fp8 block-scale weights in torch, and what it gives in fp32."""

from dataclasses import dataclass
from typing import Any

import torch

from fidelity.kernel.work import Case

BLOCK = 128
Tensor = Any


@dataclass(frozen=True)
class Weights:
    """w1 [E, 2I, K] and w2 [E, K, I] in fp8 with float32 scales per 128 x 128 block. Only the experts in
    `used` have values: the others are never routed to."""

    w1: Tensor
    w2: Tensor
    w1_scale: Tensor
    w2_scale: Tensor
    used: Tensor


@dataclass(frozen=True)
class Batch:
    """Tokens x [M, K] in bf16, their experts ids [M, topk] and weights [M, topk], and y [M, K] in fp32: the
    layer's output with unrounded activations."""

    x: Tensor
    ids: Tensor
    gates: Tensor
    y: Tensor


def make_weights(case: Case, seed: int, device: str, fp8: Any) -> Weights:
    """Values for a few more experts than `topk`: in a larger batch each gets tokens of its own choice."""
    generator = torch.Generator(device).manual_seed(seed)
    count, k, width = case.experts, case.hidden, case.intermediate
    used = torch.randperm(count, generator=generator, device=device)[: case.topk + 2]
    w1 = torch.empty((count, 2 * width, k), dtype=fp8, device=device)
    w2 = torch.empty((count, k, width), dtype=fp8, device=device)
    w1_scale = torch.ones((count, 2 * width // BLOCK, k // BLOCK), device=device)
    w2_scale = torch.ones((count, k // BLOCK, width // BLOCK), device=device)
    for expert in used.tolist():
        for weight, scale, depth in ((w1, w1_scale, k), (w2, w2_scale, width)):
            rows, columns = weight.shape[1:]
            values = torch.randn((rows, columns), generator=generator, device=device) / depth**0.5
            weight[expert], scale[expert] = quantise_blocks(values, fp8)
    return Weights(w1, w2, w1_scale, w2_scale, used)


def make_batch(case: Case, weights: Weights, seed: int, device: str) -> Batch:
    generator = torch.Generator(device).manual_seed(seed + case.m)
    x = torch.randn((case.m, case.hidden), generator=generator, device=device).to(torch.bfloat16)
    order = torch.rand((case.m, len(weights.used)), generator=generator, device=device).argsort(dim=1)
    ids = weights.used[order[:, : case.topk]].to(torch.int32)
    gates = torch.rand((case.m, case.topk), generator=generator, device=device) + 0.5
    gates = gates / gates.sum(dim=1, keepdim=True)
    y = torch.zeros((case.m, case.hidden), device=device)
    for expert, tokens, slots in routing(ids):
        both = x[tokens].float() @ dequantise(weights.w1[expert], weights.w1_scale[expert]).T
        gate, up = both.chunk(2, dim=1)
        out = (torch.nn.functional.silu(gate) * up) @ dequantise(
            weights.w2[expert], weights.w2_scale[expert]
        ).T
        y[tokens] += out * gates[tokens, slots, None]
    return Batch(x, ids, gates, y)


def routing(ids: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """(expert, its tokens, the slot of each in the top k) for every expert that has tokens."""
    return [(expert, *torch.nonzero(ids == expert, as_tuple=True)) for expert in ids.unique().tolist()]


def quantise_blocks(values: Tensor, fp8: Any) -> tuple[Tensor, Tensor]:
    """[N, K] -> fp8 [N, K] and the scale of each 128 x 128 block."""
    rows, columns = values.shape
    blocks = values.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(fp8).max
    return (blocks / scale).view(rows, columns).to(fp8), scale[:, 0, :, 0]


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    """fp8 [N, K] and its block scales -> float32 [N, K]."""
    rows, columns = weight.shape
    blocks = weight.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    return (blocks * scale[:, None, :, None]).view(rows, columns)


def round_activations(x: Tensor, fp8: Any) -> Tensor:
    """[..., K] float32 as it comes out of fp8 with a scale per token and 128 elements."""
    parts = x.view(*x.shape[:-1], -1, BLOCK)
    scale = parts.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / torch.finfo(fp8).max
    return ((parts / scale).to(fp8).float() * scale).view(x.shape)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """max over tokens of |found - expected|_2 / |expected|_2; NaN where any value is no number."""
    difference = (found.float() - expected).norm(dim=1) / expected.norm(dim=1)
    return float(difference.max())
