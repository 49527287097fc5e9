"""A prefill in several forwards: in chunks of a bounded size, or cut at the last grid point."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .cache import PrefixCache
from .layers import Array
from .model import Model, Recurrent, Result, Segment, State
from .settings import Settings

log = logging.getLogger("fidelity.refserver")


@dataclass
class _Progress:
    """One segment on its way: the state reached, the logits, hidden states and checkpoints so far."""

    segment: Segment
    state: State
    logits: list[Array] = field(default_factory=list)
    hidden: list[Array] = field(default_factory=list)
    checkpoints: dict[int, Recurrent] = field(default_factory=dict)
    last: Result | None = None

    @property
    def end(self) -> int:
        return self.segment.state.length + len(self.segment.ids)

    def next_chunk(self, most: int, grid: int | None) -> Segment:
        """Up to `most` tokens from here on, with a `grid` not across the last grid point before the end."""
        start, segment = self.state.length, self.segment
        stop = min(self.end, start + most)
        cut = (self.end - 1) // grid * grid if grid is not None else start
        if start < cut:
            stop = min(stop, cut)
        first = segment.state.length
        return replace(
            segment,
            ids=segment.ids[start - first : stop - first],
            state=self.state,
            checkpoints=tuple(p for p in segment.checkpoints if start < p <= stop),
            logits_from=None
            if segment.logits_from is None or segment.logits_from >= stop
            else max(segment.logits_from, start),
        )

    def take(self, chunk: Segment, result: Result) -> None:
        """Go on from a chunk's result; of its logits keep what the segment wants."""
        self.state, self.last = result.state, result
        self.checkpoints |= result.checkpoints
        if chunk.logits_from is not None or result.state.length == self.end:
            self.logits.append(result.logits)
            self.hidden.append(result.hidden)

    def result(self) -> Result:
        if self.last is None:
            raise ValueError("a prefill has at least one chunk")
        logits, hidden = np.concatenate(self.logits), np.concatenate(self.hidden)
        return replace(self.last, logits=logits, hidden=hidden, checkpoints=self.checkpoints)


def prefill(model: Model, segments: Sequence[Segment], settings: Settings) -> list[Result]:
    """The results of one forward over all segments, in forwards of at most `chunked_prefill_size` tokens.

    Forwards are filled in the order of the segments; each continues where the one before it ended. With a
    `prefill_cut` none crosses a segment's last multiple of it, so that the rest is computed apart.
    """
    tokens = sum(len(segment.ids) for segment in segments)
    chunk, grid = settings.chunked_prefill_size or tokens, settings.prefill_cut
    if grid is None and tokens <= chunk:
        return model.forward(segments)
    ways = [_Progress(segment, segment.state) for segment in segments]
    while pending := [way for way in ways if way.state.length < way.end]:
        left, batch = chunk, []
        for way in pending:
            if left > 0:
                batch.append((way, way.next_chunk(left, grid)))
                left -= len(batch[-1][1].ids)
        for (way, part), result in zip(batch, model.forward([part for _, part in batch]), strict=True):
            way.take(part, result)
    return [way.result() for way in ways]


def log_prefill(
    segments: Sequence[Segment], cache: PrefixCache, settings: Settings, running: int, queued: int
) -> None:
    """The log line of a prefill, as sglang writes it."""
    log.info(
        "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, full token usage: %.2f, "
        "mamba usage: %.2f, #running-req: %d, #queue-req: %d",
        len(segments),
        sum(len(segment.ids) for segment in segments),
        sum(segment.cached for segment in segments),
        cache.tokens / settings.max_cache_tokens,
        cache.states / settings.max_states,
        running,
        queued,
    )
