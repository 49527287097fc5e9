"""Which batches of a model the split-K fault reaches on a GPU, and the tails that probes use for that."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fidelity.errors import UsageError
from fidelity.gpus import Gpu
from fidelity.guards.registry import version_numbers
from fidelity.model_shapes import LocalShape, MoeShape
from fidelity.probes.cells import default_tails
from fidelity.shapes import SIZES, Split, largest_affected, split_of

SMALL_M_KERNEL = (0, 5, 22)
"""The first sglang whose own small-batch fp8 kernel takes some shapes away from aiter on gfx950."""
SMALL_M_LIMITS = {256: 20, 128: 48}
"""Width of an expert on one rank -> the most tokens that kernel takes, for K = 4096 and top-k 10 or 11."""
GUARDED_AITER = (0, 5, 16)


@dataclass(frozen=True)
class Row:
    """One TP. `largest` affected M (0: none) decides the tails; `apart` and `fused` are what it is with the
    shared expert apart and fused (None where it cannot be). `elsewhere`: why these batches never reach the
    split kernel."""

    tp: int
    shape: LocalShape
    splits: tuple[Split, ...]
    apart: int
    fused: int | None
    largest: int
    elsewhere: str | None
    suspects: tuple[int, ...]
    controls: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """`rows` is empty for a model that is never affected (`model.safe_because`)."""

    model: MoeShape
    gpu: Gpu
    units: int
    ep: int
    sglang: str | None
    rows: tuple[Row, ...]

    def data(self) -> dict[str, object]:
        return {**asdict(self), "assumptions": assumptions(self), "check": CHECK}


CHECK = (
    "On the machine, aiter logs once per shape: '[fused_moe] using 2stage default for (...)' and 'run_1stage "
    "= ..., ksplit = ..., block_m = ...'. ksplit must be the split shown here; K / (ksplit x 256) is the K "
    "tiles of each split."
)


def table(
    model: MoeShape,
    gpu: Gpu,
    *,
    units: int | None = None,
    tps: Sequence[int] | None = None,
    ep: int = 1,
    sglang: str | None = None,
) -> Table:
    """The rows of a model; without `tps`, those of 1, 2, 4 and 8 that divide it. Raises UsageError for a
    given TP or EP that does not, and for a version that is none."""
    if sglang is not None and version_numbers(sglang) is None:
        raise UsageError(f"'{sglang}' is no sglang version", "give one such as 0.5.21")
    chosen = list(tps) if tps else [tp for tp in model.fitting_tp(ep) if tp <= 8] or [ep]
    rows = [row(model, gpu, tp, units=units, ep=ep, sglang=sglang) for tp in chosen]
    safe = model.safe_because is not None
    return Table(model, gpu, units or gpu.units, ep, sglang, () if safe else tuple(rows))


def row(
    model: MoeShape, gpu: Gpu, tp: int, *, units: int | None = None, ep: int = 1, sglang: str | None = None
) -> Row:
    """One row, as if the checkpoint were fp8 block-scale. Raises UsageError."""
    compute_units = units or gpu.units
    local = model.local(tp, ep)
    splits = tuple(split_of(m, **asdict(local), compute_units=compute_units) for m in SIZES)
    apart = largest_affected(**asdict(local), compute_units=compute_units)
    fused = None
    if model.fusable:
        fused = largest_affected(**asdict(model.local(tp, ep, fused=True)), compute_units=compute_units)
    # Whether it fuses is the server's choice. Fused, the region is never larger: with it apart, no control
    # can be in the region.
    elsewhere = _elsewhere(local, gpu, sglang, apart)
    largest = 0 if elsewhere else apart
    suspects, controls = default_tails(largest)
    return Row(tp, local, splits, apart, fused, largest, elsewhere, suspects, controls)


def _elsewhere(local: LocalShape, gpu: Gpu, sglang: str | None, largest: int) -> str | None:
    numbers = version_numbers(sglang)
    limit = SMALL_M_LIMITS.get(local.intermediate, 0)
    if not largest or largest > limit or gpu.arch != "gfx950" or numbers is None or numbers < SMALL_M_KERNEL:
        return None
    if local.hidden != 4096 or local.topk not in (10, 11):
        return None
    return f"sglang {sglang} sends up to {limit} tokens of this shape to its own kernel smallm_moe_gfx950"


def assumptions(found: Table) -> list[str]:
    """What the table takes for granted, one sentence each."""
    said = [
        f"aiter's default heuristic on {found.units} compute units: no tuned row for these shapes, "
        "AITER_KSPLIT unset, no partition mode"
    ]
    if found.model.assumed:
        said.append(f"not confirmed by a public source: {', '.join(found.model.assumed)}")
    if found.ep > 1:
        said.append(
            f"EP {found.ep} is computed with the experts and widths of one rank; not checked on a GPU"
        )
    if found.model.fusable:
        differ = [str(row.tp) for row in found.rows if row.apart != row.fused]
        where = f"changes the rows of TP {', '.join(differ)}" if differ else "changes no row"
        said.append(
            f"the shared expert fused as one more routed one (top-k {found.model.topk + 1} of "
            f"{found.model.experts + 1}) {where}; the tails are those with it apart"
        )
    numbers = version_numbers(found.sglang)
    if numbers is None and found.gpu.arch == "gfx950":
        said.append(
            "no --sglang version: from 0.5.22 on, some K = 4096 shapes go to another kernel on gfx950"
        )
    if any(row.elsewhere for row in found.rows):
        said.append("SGLANG_ROCM_SMALLM_MOE is not 0: with 0 these batches reach the split kernel again")
    if numbers == GUARDED_AITER:
        said.append("not counted: the aiter in the ROCm images of 0.5.16 guards these calls itself")
    return said
