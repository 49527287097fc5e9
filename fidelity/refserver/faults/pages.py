"""Faults of the prefix cache: pages and states of other prompts, and servers whose cache proves nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..cache import Arrays, Ids, Match, PrefixCache
from ..layers import frozen
from ..model import Recurrent, State
from ..pool import Pool
from ..settings import Settings
from .spec import Fault


@dataclass(frozen=True)
class Kept:
    """What was inserted for one prompt: its cached ids, as bytes, and their state."""

    ids: bytes
    recurrent: Recurrent
    keys: Arrays
    values: Arrays


class FaultyCache(PrefixCache):
    """A prefix cache with the faults of these names; the others it leaves to their own mechanisms."""

    def __init__(
        self, page_size: int, max_tokens: int, max_states: int, faults: Mapping[str, Fault], seed: int
    ) -> None:
        super().__init__(page_size, max_tokens, max_states)
        self._faults = faults
        self._seed = seed
        self._requests = 0
        self._latest: list[Kept] = []  # of the last two prompts that differ, the newest last

    def match(self, namespace: str, ids: Ids, limit: int) -> Match:
        """As the cache's own, one call a request."""
        self._requests += 1
        found = super().match(namespace, ids, limit)
        return Match((), 0) if "never-hits" in self._faults else found

    def restore(self, match: Match) -> State:
        """As the cache's own; under drift with another prompt's state and last page."""
        state = super().restore(match)
        other = self._other(b"".join(page.ids for page in match.pages[: match.usable]))
        if other is None or not self._drifts():
            return state
        return replace(
            state,
            recurrent=other.recurrent,
            keys=self._with_page(state.keys, other.keys, state.length),
            values=self._with_page(state.values, other.values, state.length),
        )

    def insert(self, namespace: str, ids: Ids, recurrent: Recurrent, keys: Arrays, values: Arrays) -> None:
        """As the cache's own, with what the faults make of the conv state and of the last page."""
        own = Kept(ids.tobytes(), recurrent, keys, values)
        other = self._other(own.ids)
        if other is not None:
            if self._picks("stale-conv", own):
                recurrent = replace(recurrent, conv=other.recurrent.conv)
            if self._picks("shared-page", own):
                keys = self._with_page(keys, other.keys, len(ids))
                values = self._with_page(values, other.values, len(ids))
        super().insert(namespace, ids, recurrent, keys, values)
        self._latest = [*(kept for kept in self._latest if kept.ids != own.ids), own][-2:]

    def clear(self) -> None:
        """Forget everything, or with a lying flush nothing."""
        if "lying-flush" not in self._faults:
            super().clear()

    def _picks(self, name: str, kept: Kept) -> bool:
        fault = self._faults.get(name)
        return fault is not None and fault.picks(self._seed, kept.ids)

    def _drifts(self) -> bool:
        fault = self._faults.get("drift")
        if fault is None or self._requests <= fault["after"]:
            return False
        grown = min(self._requests / fault["after"] - 1, 1.0)
        return fault.picks(self._seed, str(self._requests).encode(), share=fault["rate"] * grown)

    def _other(self, ids: bytes) -> Kept | None:
        """What was last inserted for another prompt."""
        return next((kept for kept in reversed(self._latest) if kept.ids != ids), None)

    def _with_page(self, own: Arrays, other: Arrays, end: int) -> Arrays:
        """`own` with its page before `end` from `other`: the page at the same place, or its last one."""
        start = end - self.page_size
        pages = []
        for mine, theirs in zip(own, other, strict=True):
            at = min(start, len(theirs) // self.page_size * self.page_size - self.page_size)
            page = theirs[at : at + self.page_size]
            pages.append(frozen(np.concatenate([mine[:start], page, mine[end:]])))
        return tuple(pages)


class KeepingPool(Pool):
    """An allocator that a flush does not empty."""

    def clear(self) -> None:
        """Keep every block."""


def build_pool(settings: Settings) -> Pool:
    """The allocator: one that keeps everything under a lying flush."""
    return KeepingPool() if any(fault.name == "lying-flush" for fault in settings.faults) else Pool()


def build_cache(settings: Settings) -> PrefixCache:
    """The prefix cache, faulty where there is a fault."""
    sizes = (settings.page_size, settings.max_cache_tokens, settings.max_states)
    named = {fault.name: fault for fault in settings.faults}
    return FaultyCache(*sizes, named, settings.seed) if named else PrefixCache(*sizes)
