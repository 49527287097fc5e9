"""Faults of what a reply says: counts and logprobs that are wrong, missing or another row's."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..logprobs import Row
from ..sequence import Sequence
from ..settings import Settings
from .spec import Fault


class Replies:
    """What the faults of these names make of a server's replies; without any, nothing."""

    def __init__(self, faults: Mapping[str, Fault], seed: int, grid: int) -> None:
        self._faults = faults
        self._seed = seed
        self._grid = grid
        self._row: Row | None = None  # of logprobs, quoted last

    def received(self, sequence: Sequence) -> None:
        """Take a request in, before it waits."""
        request = sequence.request
        if "no-logprobs" in self._faults:
            sequence.request = replace(request, wanted=None, prompt_from=None)
        for name, quoted in (("shifted-logprobs", self._shifted), ("shard-logprobs", self._of_one_shard)):
            fault = self._faults.get(name)
            if fault is not None and fault.picks(self._seed, request.ids.tobytes()):
                sequence.quoted = quoted

    def cached(self, tokens: int) -> int | None:
        """The count of cached tokens as a reply states it, None for null."""
        if "null-counts" in self._faults:
            return None
        return max(tokens - self._grid, 0) if "wrong-count" in self._faults else tokens

    def _shifted(self, logprobs: Row) -> Row:
        before = logprobs if self._row is None else self._row
        self._row = logprobs
        return before

    def _of_one_shard(self, logprobs: Row) -> Row:
        first = logprobs[: len(logprobs) // int(self._faults["shard-logprobs"]["shards"])]
        largest = first.max()
        shown: Row = logprobs - (largest + np.log(np.exp(first - largest).sum()))
        return shown


def build_replies(settings: Settings) -> Replies:
    """What a server of these settings makes of its replies."""
    return Replies({fault.name: fault for fault in settings.faults}, settings.seed, settings.grid)
