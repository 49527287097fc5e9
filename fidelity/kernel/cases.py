"""Which calls are made for a model: every M at every TP, with the split that is predicted for it."""

from collections.abc import Sequence
from dataclasses import asdict

from fidelity.errors import UsageError
from fidelity.kernel.work import Case
from fidelity.model_shapes import MoeShape
from fidelity.shapes import split_of

SIZES = (1, 2, 3, 4, 8, 16, 32)
BLOCK = 128


def cases(
    model: MoeShape, tps: Sequence[int], units: int, *, ep: int = 1, sizes: Sequence[int] = SIZES
) -> list[Case]:
    """Raises UsageError for a TP that does not divide, a depth that is no whole number of scale blocks, and a
    checkpoint that never takes this kernel."""
    if model.safe_because is not None:
        raise UsageError(
            f"{model.model} never takes the block-scale kernel: {model.safe_because}",
            "there is nothing to check; give the fp8 block-scale checkpoint",
        )
    if model.hidden % BLOCK:
        raise UsageError(f"{model.model}: hidden size {model.hidden} is no multiple of {BLOCK}")
    found = []
    for tp in tps or [tp for tp in model.fitting_tp(ep) if tp <= 8]:
        local = model.local(tp, ep)
        if local.topk > local.experts:
            raise UsageError(f"{model.model}: top-k {local.topk} of {local.experts} experts a rank")
        padded = -(-local.intermediate // BLOCK) * BLOCK
        for m in sizes:
            split = split_of(m, **asdict(local), compute_units=units)
            found.append(
                Case(
                    tp=tp,
                    m=m,
                    hidden=local.hidden,
                    intermediate=padded,
                    topk=local.topk,
                    experts=local.experts,
                    splits=split.splits,
                    tiles=split.tiles,
                    affected=split.affected,
                )
            )
    return found
