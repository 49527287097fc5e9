"""Mixture of experts whose first GEMM is split along K as aiter's is, and the fault of that split.

A split GEMM accumulates its partial sums into a scratch buffer. The buffer comes from a caching allocator
and is zeroed only where a split covers two K tiles or more. With one tile per split the partials land on
whatever the memory held: the sums of earlier layers and requests (``split-k``), or NaN where the block last
held the token-sort buffer, whose unused entries are int32 -1, a NaN's bits (``split-k-nan``).

The finite faults need a warm pool. A new block is zero, so the first split forward of its size class has one
right layer and three that carry a sum or two too many, which a sure model shrugs off; each further forward
adds to the pile (``Model.warm_up``). For the NaN fault both buffers must share a size class, as they do where
16 * E = I * top_k.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .layers import Array, sigmoid, silu, softmax
from .pool import Pool

Fault = Literal["none", "split-k", "split-k-nan", "split-k-extend"]
Guard = Literal["none", "splitk", "unsplit"]

TILE = 16  # K per tile: 8 tiles of a hidden size of 128 stand for 2048 / 256
BLOCK_ROWS = 16  # rows of a tile of sorted tokens


@dataclass(frozen=True)
class MoeWeights:
    """One layer's weights, input axis first; gate and up projections side by side."""

    top_k: int
    renormalise: bool
    router: Array  # [hidden, E]
    stage1: Array  # [E, hidden, 2 I]
    stage2: Array  # [E, I, hidden]
    shared1: Array  # [hidden, 2 Is]
    shared2: Array  # [Is, hidden]
    shared_gate: Array  # [hidden, 1]


@dataclass
class Experts:
    """How the experts run: allocator, virtual compute units, guard, fault and benign noise.

    ``rows_written``: rows of an extend that get their experts' output, None for all; fewer is a fault.

    ``noise`` is the standard deviation of a factor 1 + noise * N(0, 1) on each expert's output; any noise
    also shuffles the order in which experts are summed. Raises ValueError for an unknown guard or fault.
    """

    pool: Pool = field(default_factory=Pool)
    cu: int = 16
    guard: Guard = "none"
    fault: Fault = "none"
    noise: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    rows_written: int | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("guard", self.guard, Guard), ("fault", self.fault, Fault)):
            if value not in get_args(known):
                raise ValueError(f"unknown {name} {value!r}: one of {', '.join(get_args(known))}")


def k_splits(M: int, K: int, I: int, topk: int, E: int, cu: int) -> int:  # noqa: E741
    """Number of K splits of the stage-1 GEMM, 0 for none: aiter's default heuristic with a K tile of 16.

    M tokens padded to a power of two; none if M topk > E or if the tiles already fill the compute units;
    else the largest i <= ceil(cu / (M topk ceil(I / 128))) that cuts K into equal runs of whole tiles.
    """
    padded = 1 << max(M - 1, 0).bit_length()
    groups = padded * topk * -(-I // 128)
    if padded * topk > E or groups >= cu:
        return 0
    for splits in range(-(-cu // groups), 1, -1):
        if K % splits == 0 and (K // splits) % TILE == 0:
            return splits
    return 0


def guarded_splits(splits: int, K: int, guard: Guard) -> int:
    """The split count a guard leaves: ``splitk`` keeps two K tiles a split or more, ``unsplit`` none."""
    if guard == "none" or splits < 2:
        return splits
    if guard == "unsplit":
        return 0
    for fewer in range(splits, 1, -1):
        if K % (fewer * TILE) == 0 and K // (fewer * TILE) >= 2:
            return fewer
    return 0


def forward(w: MoeWeights, x: Array, experts: Experts, *, extend: bool) -> Array:
    """Routed experts plus the gated shared expert over x [tokens, hidden].

    ``extend`` says whether the forward computes prompt tokens; only ``split-k-extend`` asks.
    """
    scores, chosen = route(w, x)
    hidden, width = x.shape[1], w.stage2.shape[1]
    splits = k_splits(len(x), hidden, width, w.top_k, len(w.stage1), experts.cu)
    splits = guarded_splits(splits, hidden, experts.guard)
    if experts.fault == "split-k-extend" and not extend:
        splits = 0  # the captured decode path of that picture runs another kernel

    sort_buffer = _sort(chosen, len(w.stage1), experts.pool)
    rows = _rows(sort_buffer, chosen)
    if experts.noise:
        rows = [rows[i] for i in experts.rng.permutation(len(rows))]
    if experts.fault == "split-k-nan":
        experts.pool.give(sort_buffer)
    if splits:
        zeroed = hidden // (splits * TILE) >= 2 or experts.fault == "none"
        act = _split_stage1(w, x, rows, splits, zeroed, experts.pool)
    else:
        act = _stage1(w, x, rows)
    if experts.fault != "split-k-nan":
        experts.pool.give(sort_buffer)

    half = w.shared1.shape[1] // 2
    shared = x @ w.shared1
    out = (silu(shared[:, :half]) * shared[:, half:]) @ w.shared2
    out *= sigmoid(x @ w.shared_gate)
    for expert, tokens, slots in rows:
        y = act[tokens, slots] @ w.stage2[expert] * scores[tokens, slots, None]
        if experts.noise:
            y *= np.float32(1 + experts.noise * experts.rng.standard_normal())
        if extend and experts.rows_written is not None:
            y[tokens >= experts.rows_written] = 0
        out[tokens] += y
    return out


def route(w: MoeWeights, x: Array) -> tuple[Array, NDArray[np.intp]]:
    """Softmax over the experts, then the top k, renormalised: weights and expert ids, both [tokens, k]."""
    probabilities = softmax(x @ w.router)
    chosen = np.argsort(-probabilities, axis=1, kind="stable")[:, : w.top_k]
    scores: Array = probabilities[np.arange(len(x))[:, None], chosen]
    if w.renormalise:
        scores = scores / scores.sum(axis=1, keepdims=True)
    return scores, chosen


Rows = list[
    tuple[int, NDArray[np.intp], NDArray[np.intp]]
]  # (expert, token of each row, its slot in the top k)


def _sort(chosen: NDArray[np.intp], count: int, pool: Pool) -> NDArray[np.int32]:
    """(token, slot) pairs by expert, each expert with room for a tile per padded token; -1 where unused."""
    tiles = 1 << (len(chosen) - 1).bit_length()
    buffer: NDArray[np.int32] = pool.take((count, tiles * BLOCK_ROWS, 2), np.int32)
    buffer.fill(-1)
    for expert in set(chosen.ravel().tolist()):
        pairs = np.argwhere(chosen == expert)
        buffer[expert, : len(pairs)] = pairs
    return buffer


def _rows(sort_buffer: NDArray[np.int32], chosen: NDArray[np.intp]) -> Rows:
    """Read the sorted pairs out of their buffer, so that it may be given back."""
    counts = np.bincount(chosen.ravel(), minlength=len(sort_buffer))
    return [
        (expert, *sort_buffer[expert, : counts[expert]].astype(np.intp).T)
        for expert in np.flatnonzero(counts).tolist()
    ]


def _stage1(w: MoeWeights, x: Array, rows: Rows) -> Array:
    """silu(gate) * up for every (token, slot): [tokens, k, I]."""
    width = w.stage2.shape[1]
    act = np.empty((len(x), w.top_k, width), np.float32)
    for expert, tokens, slots in rows:
        both = x[tokens] @ w.stage1[expert]
        act[tokens, slots] = silu(both[:, :width]) * both[:, width:]
    return act


def _split_stage1(w: MoeWeights, x: Array, rows: Rows, splits: int, zeroed: bool, pool: Pool) -> Array:
    """The same with the GEMM split along K, its partial sums accumulated in a block of the pool."""
    both = w.stage1.shape[2]
    width = both // 2
    sums: Array = pool.take((len(x), w.top_k, both), np.float32)
    if zeroed:
        sums.fill(0)
    for expert, tokens, slots in rows:
        pieces = x[tokens].reshape(len(tokens), splits, -1).swapaxes(0, 1)
        partials = pieces @ w.stage1[expert].reshape(splits, -1, both)
        sums[tokens, slots] += partials.sum(axis=0)
    act: Array = silu(sums[..., :width]) * sums[..., width:]
    pool.give(sums)
    return act
