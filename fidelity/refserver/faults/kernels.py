"""Faults of the expert kernel and of reading keys and values."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from .. import moe
from ..layers import Array, frozen
from ..model import Result, Segment, State
from ..weights import Weights
from .forward import ForwardFault
from .spec import Fault


class SplitK(ForwardFault):
    """The split product's block is left as it was, in forwards that hold a prompt the rate picks."""

    def __init__(self, fault: Fault, seed: int, experts: moe.Experts) -> None:
        super().__init__(fault, seed)
        self._experts = experts

    def before(self, segments: list[Segment]) -> list[Segment]:
        picked = any(self.picks(segment) for segment in segments)
        self._experts.fault = cast(moe.Fault, self.fault.name) if picked else "none"
        return segments


class LongPrefill(ForwardFault):
    """Extends with a prompt that the rate picks write the experts' output for their first rows only."""

    def __init__(self, fault: Fault, seed: int, experts: moe.Experts) -> None:
        super().__init__(fault, seed)
        self._experts = experts

    def before(self, segments: list[Segment]) -> list[Segment]:
        picked = any(not segment.decode and self.picks(segment) for segment in segments)
        self._experts.rows_written = int(self.fault["tokens"]) if picked else None
        return segments


class KvScaleDecode(ForwardFault):
    """A decode step reads keys and values without their scale; what is stored stays right."""

    def before(self, segments: list[Segment]) -> list[Segment]:
        read = scaled(self.fault["scale"])
        return [replace(s, state=read(s.state)) if s.decode and self.picks(s) else s for s in segments]

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        return [
            replace(result, state=_stored(segment.state, result.state))
            if segment.decode and self.picks(segment)
            else result
            for segment, result in zip(segments, results, strict=True)
        ]


def scaled(scale: float) -> Callable[[State], State]:
    """A state whose keys and values are read as `scale` times what they are."""

    def read(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(frozen(array * np.float32(scale)) for array in arrays)

    return lambda state: replace(state, keys=read(state.keys), values=read(state.values))


def all_wrong(weights: Weights, scale: float) -> Weights:
    """The weights with the routed experts' output scaled in every layer."""
    tensors = {
        name: tensor * np.float32(scale) if ".experts." in name and ".down_proj." in name else tensor
        for name, tensor in weights.tensors.items()
    }
    return replace(weights, tensors=tensors)


def _stored(before: State, after: State) -> State:
    def kept(old: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(frozen(np.concatenate([a, b[len(a) :]])) for a, b in zip(old, new, strict=True))

    return replace(after, keys=kept(before.keys, after.keys), values=kept(before.values, after.values))
