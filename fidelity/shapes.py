"""Which batch sizes M the split-K fault can reach: the arithmetic of aiter's default split heuristic.

An fp8 block-scale stage-1 MoE GEMM of depth K is split along K when the batch is small; when every split owns
exactly one K tile, the partial sums land on memory that nobody zeroed.
"""


def affected(
    m: int, *, hidden: int, intermediate: int, topk: int, experts: int, compute_units: int, tile: int
) -> bool:
    """Is a forward of `m` tokens split so far that each split owns one K tile?

    With M padded to the next power of two, K = hidden, I = intermediate per rank: M*topk <= E and
    M*topk*ceil(I/128)*(K/tile - 1) < CU (K a multiple of the tile, at least two tiles, M <= 32).
    """
    padded = 1 << (m - 1).bit_length()
    if padded > 32 or hidden % tile or hidden // tile < 2:
        return False
    groups = padded * topk * -(-intermediate // 128)
    return padded * topk <= experts and groups * (hidden // tile - 1) < compute_units


def largest_affected(
    *, hidden: int, intermediate: int, topk: int, experts: int, compute_units: int, tile: int
) -> int:
    """The largest affected M, 0 when none is (affected sizes are always 1 .. M)."""
    shape = {"hidden": hidden, "intermediate": intermediate, "topk": topk, "experts": experts}
    sizes = (m for m in range(1, 33) if affected(m, **shape, compute_units=compute_units, tile=tile))
    return max(sizes, default=0)
