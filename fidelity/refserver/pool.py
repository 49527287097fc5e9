"""A caching allocator: blocks that are given back are handed out again as they are, never cleared.

Serving engines keep device memory this way, and it is why a kernel that forgets to zero its buffer reads
whatever the last user of the block left there. A block that is new to the pool holds zeros, as memory fresh
from the operating system does, so such a fault stays hidden until the pool is warm.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

SMALLEST_BLOCK = 512  # bytes


def block_size(nbytes: int) -> int:
    """The size class of a request in bytes: the next power of two, at least ``SMALLEST_BLOCK``."""
    return max(SMALLEST_BLOCK, 1 << (nbytes - 1).bit_length()) if nbytes > 0 else SMALLEST_BLOCK


class Pool:
    """Blocks by size class, the one given back last handed out first."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array of this shape and dtype, holding whatever its block held before."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        size = block_size(nbytes)
        blocks = self._free.setdefault(size, [])
        block = blocks.pop() if blocks else np.zeros(size, np.uint8)
        return block[:nbytes].view(dtype).reshape(shape)

    def give(self, array: NDArray[Any]) -> None:
        """Take back an array that :meth:`take` returned; the caller must not touch it afterwards."""
        block = array.base
        if not isinstance(block, np.ndarray):
            raise ValueError("only arrays taken from a pool can be given back to it")
        self._free.setdefault(block.nbytes, []).append(block)

    def clear(self) -> None:
        """Forget every free block, so that the next ones are new and hold zeros."""
        self._free.clear()
