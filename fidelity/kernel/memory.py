"""Fill the memory that torch hands out, so that a buffer nobody zeroes shows what it held."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
FILLED = (torch.float32, torch.bfloat16, torch.float16)


def fill_free_memory(value: float, device: str) -> None:
    """Take blocks of every size class, fill them with `value` as float32, and give all of them back."""
    blocks = [
        torch.full((size // 4,), value, dtype=torch.float32, device=device)
        for size, count in BLOCKS
        for _ in range(count)
    ]
    torch.cuda.synchronize()
    del blocks


@dataclass
class Fresh:
    """How many buffers were taken while they came filled."""

    buffers: int = 0


@contextmanager
def filled(value: float, device: str) -> Iterator[Fresh]:
    """While it lasts, new floating-point memory is full of `value`: what the allocator had free, and each
    buffer that `torch.empty` hands out. The second is needed too: a call reuses what it freed itself a
    moment ago, and such values can be too small to show."""
    if device == "cuda":
        fill_free_memory(value, device)
    plain, fresh = torch.empty, Fresh()

    def empty(*args: Any, **kwargs: Any) -> Any:
        buffer = plain(*args, **kwargs)
        if buffer.dtype in FILLED:
            buffer.fill_(value)
            fresh.buffers += 1
        return buffer

    torch.empty = empty
    try:
        yield fresh
    finally:
        torch.empty = plain
