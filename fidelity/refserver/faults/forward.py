"""Where faults of the computation sit: around each forward of the model, extends and decodes alike."""

from collections.abc import Sequence
from dataclasses import replace

from ..model import Model, Result, Segment
from ..moe import Experts
from ..weights import Weights
from .spec import Fault


class ForwardFault:
    """One fault of the computation: what a forward is given, and what becomes of its results."""

    def __init__(self, fault: Fault, seed: int) -> None:
        self.fault = fault
        self.seed = seed

    def picks(self, segment: Segment) -> bool:
        """Whether the fault's rate picks the segment's prompt."""
        return self.fault.picks(self.seed, prompt_of(segment))

    def before(self, segments: list[Segment]) -> list[Segment]:
        """The segments as the damaged engine computes them."""
        return segments

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        """The results as the damaged engine keeps them; `segments` are those the scheduler asked for."""
        return results


class FaultyModel(Model):
    """A model whose forwards go through faults, in the order given."""

    def __init__(self, weights: Weights, experts: Experts, faults: Sequence[ForwardFault]) -> None:
        super().__init__(weights, experts)
        self._faults = tuple(faults)

    def forward(self, segments: Sequence[Segment]) -> list[Result]:
        """As the model's own, with the faults before and after it."""
        asked = list(segments)
        given = asked
        for fault in self._faults:
            given = fault.before(given)
        results = super().forward(given)
        for fault in self._faults:
            results = fault.after(asked, results)
        return results


def prompt_of(segment: Segment) -> bytes:
    """What a rate goes by: the ids of the whole prompt, or of the segment where no prompt is known."""
    ids = segment.ids if segment.prompt is None else segment.prompt
    return ids.astype("<i8").tobytes()


def is_hit(segment: Segment) -> bool:
    """Whether the segment continues, unchanged, what the prefix cache had of its prompt."""
    return not segment.decode and 0 < segment.cached == segment.state.length


def with_checkpoints(segment: Segment, positions: set[int]) -> Segment:
    """The segment, also keeping the states at these positions; its own start needs no keeping."""
    more = {position for position in positions if position > segment.state.length}
    return replace(segment, checkpoints=tuple(sorted(more.union(segment.checkpoints))))
