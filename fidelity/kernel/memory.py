"""Fill what torch's caching allocator has free, so that a buffer nobody zeroes shows what it held."""

import math
from typing import Any

import torch

BLOCKS = (
    (32 << 20, 4),
    (8 << 20, 8),
    (2 << 20, 16),
    (1 << 20, 32),
    (256 << 10, 64),
    (64 << 10, 64),
    (16 << 10, 64),
    (4 << 10, 128),
    (512, 512),
)
"""(bytes, how many), the largest first: the small ones then fill what is left between the others."""


def fill_free_memory(value: float, device: str) -> None:
    """Take blocks of every size class, fill them with `value` as float32, and give all of them back."""
    blocks = [
        torch.full((size // 4,), value, dtype=torch.float32, device=device)
        for size, count in BLOCKS
        for _ in range(count)
    ]
    torch.cuda.synchronize()
    del blocks


def holds(buffer: Any, value: float) -> bool:
    """Is every element of `buffer` this value?"""
    same = torch.isnan(buffer) if math.isnan(value) else buffer == value
    return bool(same.all())
