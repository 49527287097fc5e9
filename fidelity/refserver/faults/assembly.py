"""From parsed faults to the engine's parts that have them."""

import math
from collections.abc import Callable

from ..model import Model, Segment
from ..moe import Experts
from ..weights import Weights
from . import kernels, rows, states
from .forward import FaultyModel, ForwardFault, is_hit
from .kinds import SPLIT_K
from .spec import Fault

Make = Callable[[Fault, int], ForwardFault]

_SIMPLE: dict[str, Make] = {
    "wrong-token-checkpoint": states.WrongTokenCheckpoint,
    "ragged-state": states.RaggedState,
    "decode-after": states.DecodeAfter,
    "kv-scale-decode": kernels.KvScaleDecode,
    "swapped-row": rows.SwappedRow,
    "draft": rows.StaleHidden,
    "hit-jitter": rows.HitJitter,
    "batch-noise": rows.BatchNoise,
}


def build_model(weights: Weights, experts: Experts, faults: tuple[Fault, ...], seed: int) -> Model:
    """The model, with the faults that sit in its computation; the plain one where there is none."""
    for fault in faults:
        if fault.name == "all-wrong":
            weights = kernels.all_wrong(weights, fault["scale"])
    around = [made for fault in faults for made in _around(fault, seed, experts)]
    return FaultyModel(weights, experts, around) if around else Model(weights, experts)


def _around(fault: Fault, seed: int, experts: Experts) -> list[ForwardFault]:
    if fault.name in SPLIT_K:
        return [kernels.SplitK(fault, seed, experts)]
    if fault.name == "long-prefill":
        return [kernels.LongPrefill(fault, seed, experts)]
    if fault.name in _SIMPLE:
        return [_SIMPLE[fault.name](fault, seed)]
    if fault.name == "zeroed-state":

        def short(segment: Segment) -> bool:
            return is_hit(segment) and len(segment.ids) <= fault["suffix"]

        return [states.Restoring(fault, seed, lambda s: states.filled(s, 0, conv=False), short)]
    if fault.name == "no-state":
        return [states.Restoring(fault, seed, lambda s: states.filled(s, 0, conv=True))]
    if fault.name == "kv-scale":
        return [states.Restoring(fault, seed, kernels.scaled(fault["scale"]))]
    if fault.name == "chunk-boundary":
        return [states.Restoring(fault, seed, lambda s: states.filled(s, 0, conv=True), _is_later_chunk)]
    if fault.name.startswith("nan-"):
        unwritten = states.Restoring(fault, seed, lambda s: states.filled(s, math.nan, conv=False))
        return [unwritten, rows.Flattened(fault, seed)] if fault.name == "nan-uniform" else [unwritten]
    return []


def _is_later_chunk(segment: Segment) -> bool:
    return not segment.decode and segment.state.length > segment.cached
