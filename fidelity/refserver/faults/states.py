"""Faults of the recurrent state: kept from the wrong token, not restored, not written back."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..layers import Array, frozen
from ..model import Recurrent, Result, Segment, State
from ..settings import CHUNK
from .forward import ForwardFault, is_hit, with_checkpoints
from .spec import Fault


class WrongTokenCheckpoint(ForwardFault):
    """A prefill keeps the state of one grid point before the checkpoint it files it under."""

    def before(self, segments: list[Segment]) -> list[Segment]:
        return [
            with_checkpoints(segment, {p - CHUNK for p in segment.checkpoints})
            if self.picks(segment)
            else segment
            for segment in segments
        ]

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        def kept(segment: Segment, result: Result) -> Result:
            if not self.picks(segment):
                return result
            start = segment.state
            known = {start.length: start.recurrent, **result.checkpoints}
            moved = {p: known.get(p - CHUNK, start.recurrent) for p in segment.checkpoints}
            return replace(result, checkpoints=moved)

        return [kept(segment, result) for segment, result in zip(segments, results, strict=True)]


class RaggedState(ForwardFault):
    """In a prefill of several requests a checkpoint's row is counted from the batch's start.

    The kernel writes the states of all sequences one after the other; read without the offset of the
    sequences before, the n-th state of a later sequence is the n-th of the batch.
    """

    def before(self, segments: list[Segment]) -> list[Segment]:
        sources = self._sources(segments)
        wanted: list[set[int]] = [set() for _ in segments]
        for row, position in sources.values():
            wanted[row].add(position)
        return [with_checkpoints(*pair) for pair in zip(segments, wanted, strict=True)]

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        sources = self._sources(segments)
        kept = []
        for index, (segment, result) in enumerate(zip(segments, results, strict=True)):
            places = {p: sources.get((index, p), (index, p)) for p in segment.checkpoints}
            checkpoints = {p: results[row].checkpoints[at] for p, (row, at) in places.items()}
            kept.append(replace(result, checkpoints=checkpoints))
        return kept

    def _sources(self, segments: list[Segment]) -> dict[tuple[int, int], tuple[int, int]]:
        """(segment, checkpoint) -> (segment, position) whose state is filed there instead."""
        ends = [_grid_points(segment) for segment in segments]
        batch = [(row, position) for row, own in enumerate(ends) for position in own]
        return {
            (index, p): batch[ends[index].index(p)]
            for index, segment in enumerate(segments)
            for p in segment.checkpoints
            if index > 0 and p in ends[index] and self.picks(segment)
        }


class Restoring(ForwardFault):
    """A segment that `reaches` the mechanism starts from another state than it was given."""

    def __init__(
        self,
        fault: Fault,
        seed: int,
        damage: Callable[[State], State],
        reaches: Callable[[Segment], bool] = is_hit,
    ) -> None:
        super().__init__(fault, seed)
        self._damage = damage
        self._reaches = reaches

    def before(self, segments: list[Segment]) -> list[Segment]:
        return [
            replace(segment, state=self._damage(segment.state))
            if self._reaches(segment) and self.picks(segment)
            else segment
            for segment in segments
        ]


class DecodeAfter(ForwardFault):
    """From the generated token `after` on, a decode step computes with the state and does not write it."""

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        return [
            self._kept(segment, result) if segment.decode and self.picks(segment) else result
            for segment, result in zip(segments, results, strict=True)
        ]

    def _kept(self, segment: Segment, result: Result) -> Result:
        """What was written: the state after the last token before `after`, of a draft's several too."""
        first = _generated(segment) - len(segment.ids) + 1
        right = int(self.fault["after"]) - first  # tokens of the segment whose state is written
        if right >= len(segment.ids):
            return result
        written = result.states[right - 1] if right > 0 else segment.state.recurrent
        states = tuple(own if at < right else written for at, own in enumerate(result.states))
        return replace(result, state=replace(result.state, recurrent=written), states=states)


def filled(state: State, value: float, *, conv: bool) -> State:
    """The state with every recurrent number, and with `conv` every convolution one, set to `value`."""

    def full(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(frozen(np.full_like(array, value)) for array in arrays)

    own = state.recurrent
    return replace(state, recurrent=Recurrent(full(own.conv) if conv else own.conv, full(own.state)))


def _generated(segment: Segment) -> int:
    """Tokens generated so far, the segment's included."""
    prompt = 0 if segment.prompt is None else len(segment.prompt)
    return segment.state.length + len(segment.ids) - prompt


def _grid_points(segment: Segment) -> list[int]:
    """The absolute positions at which the chunk form has a state, after the segment's start."""
    start = segment.state.length
    return list(range(start // CHUNK * CHUNK + CHUNK, start + len(segment.ids) + 1, CHUNK))
