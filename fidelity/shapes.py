"""Which batch sizes M the split-K fault can reach: the arithmetic of aiter's default split heuristic.

An fp8 block-scale stage-1 MoE GEMM of depth K is split along K when the batch is small; when every split owns
exactly one K tile, the partial sums land on memory that nobody zeroed. In all of it: `hidden` is K,
`intermediate` the width of one expert on one rank, `experts` those of one rank, sizes in elements.
"""

from dataclasses import dataclass

from fidelity.guards.inserver.split_k import safe_split

TILE = 256
"""K per tile of the kernels for small batches (blocks of 16 rows)."""
MOST = 32
"""The largest padded batch of the two-stage kernels; above, one kernel without a split does it all."""
SIZES = (1, 2, 4, 8, 16, 32)
"""Batches after padding to a power of two: every other M behaves as the next of these."""


def affected(
    m: int, *, hidden: int, intermediate: int, topk: int, experts: int, compute_units: int, tile: int = TILE
) -> bool:
    """Is a forward of `m` tokens split so far that each split owns one K tile?

    With M padded to the next power of two, K = hidden, I = intermediate per rank: M*topk <= E and
    M*topk*ceil(I/128)*(K/tile - 1) < CU (K a multiple of the tile, at least two tiles, M <= 32).
    """
    padded = padded_size(m)
    if padded > MOST or hidden % tile or hidden // tile < 2:
        return False
    groups = padded * topk * -(-intermediate // 128)
    return padded * topk <= experts and groups * (hidden // tile - 1) < compute_units


def largest_affected(
    *, hidden: int, intermediate: int, topk: int, experts: int, compute_units: int, tile: int = TILE
) -> int:
    """The largest affected M, 0 when none is (affected sizes are always 1 .. M)."""
    shape = {"hidden": hidden, "intermediate": intermediate, "topk": topk, "experts": experts}
    sizes = (m for m in range(1, MOST + 1) if affected(m, **shape, compute_units=compute_units, tile=tile))
    return max(sizes, default=0)


def padded_size(m: int) -> int:
    """The next power of two."""
    return 1 << (m - 1).bit_length()


@dataclass(frozen=True)
class Split:
    """What the default heuristic does with a batch of `m`: K in `splits` parts (0: unsplit) of `tiles` K
    tiles each; `safe` is the split that leaves each part two tiles or more (1: unsplit)."""

    m: int
    splits: int
    tiles: int
    affected: bool
    safe: int


def split_of(
    m: int, *, hidden: int, intermediate: int, topk: int, experts: int, compute_units: int, tile: int = TILE
) -> Split:
    """The split of a batch of `m`: the largest i from 2 to ceil(CU / (M topk ceil(I/128))) that cuts K into
    whole tiles; none where M topk > E, where the tiles fill the compute units already, or beyond 32 rows."""
    padded, tiles = padded_size(m), hidden // tile
    groups = padded * topk * -(-intermediate // 128)
    most = min(-(-compute_units // groups), tiles)
    if padded > MOST or hidden % tile or padded * topk > experts:
        most = 0
    splits = max((i for i in range(2, most + 1) if tiles % i == 0), default=0)
    if not splits:
        return Split(m, 0, tiles, affected=False, safe=0)
    return Split(m, splits, tiles // splits, tiles == splits, safe_split(hidden, splits, tile))
