"""Was a request alone on the server, and how much of it was computed: by the server's own load figures.

A second request makes a batch of two, and a fault at one token does not show in it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from fidelity.engines import json_reader

_TRIES = 3
_PAUSE = 0.02  # seconds


@dataclass(frozen=True)
class Load:
    """Over all DP ranks. `busy`: requests running or waiting; `computed`: prompt tokens computed, not taken
    from the cache, since the server's start, None where it does not count them."""

    busy: int
    computed: int | None


@dataclass(frozen=True)
class Witness:
    """`alone`: did nothing else run? None where the server does not say. `computed`: prompt tokens that the
    server computed between the two looks."""

    alone: bool | None
    computed: int | None = None


UNKNOWN = Witness(None)


def loads(client: httpx.Client) -> list[dict[str, Any]] | None:
    """What `/v1/loads`, which computes nothing, tells of each DP rank; None where there are no figures."""
    try:
        response = client.get("/v1/loads", timeout=10)
        data = json_reader.parse(response.text) if response.status_code == 200 else None
    except (httpx.TransportError, ValueError):
        return None
    ranks = data.get("loads") if isinstance(data, dict) else None
    if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, dict) for rank in ranks):
        return None
    return ranks


def running(ranks: list[dict[str, Any]]) -> int | None:
    """Requests that run, over all ranks; None where one does not say."""
    counts = [_count(rank, "num_running_reqs") for rank in ranks]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def look(client: httpx.Client) -> Load | None:
    """The load of the server; None where it does not tell."""
    ranks = loads(client)
    busy = None if ranks is None else running(ranks)
    if ranks is None or busy is None:
        return None
    waiting = [_count(rank, "num_waiting_reqs") or 0 for rank in ranks]
    computed = [_count(rank, "total_prefill_uncached_tokens") for rank in ranks]
    told = [count for count in computed if count is not None]
    return Load(busy + sum(waiting), sum(told) if len(told) == len(ranks) else None)


@dataclass
class Watch:
    """Looks at one server before and after requests. The figures may trail the replies, so every answer of
    ours has to be `sent` here: what we computed ourselves must not pass for somebody else's."""

    client: httpx.Client
    look: Callable[[httpx.Client], Load | None] = look
    _tells: bool | None = None
    _counted: int | None = None
    _ours: int = 0

    def sent(self, computed: int | None) -> None:
        """An answer of ours took so many computed tokens; None where it does not say."""
        self._ours += computed or 0

    def before(self) -> Load | None:
        """None, and no longer asked for, on a server that did not tell the first time."""
        if self._tells is False:
            return None
        load = self._settled(idle=False)
        if self._tells is None:
            self._tells = load is not None
        return load

    def after(self, before: Load) -> Witness:
        """Was what was `sent` since `before` alone? Requests that run across either look are counted as busy;
        one that came and went in between has computed tokens beyond our own."""
        own = self._ours
        after = self._settled(idle=True)
        if after is None:
            return UNKNOWN
        computed = _difference(before.computed, after.computed)
        others = computed is not None and own > 0 and computed > own
        return Witness(not (before.busy or after.busy or others), computed)

    def _settled(self, *, idle: bool) -> Load | None:
        """A look that shows all of ours (and, with `idle`, nothing running), or the last of a few."""
        load = self.look(self.client)
        for _ in range(_TRIES):
            if load is None or not ((idle and load.busy) or self._trails(load)):
                break
            time.sleep(_PAUSE)
            load = self.look(self.client)
        self._counted, self._ours = load.computed if load else None, 0
        return load

    def _trails(self, load: Load) -> bool:
        since = _difference(self._counted, load.computed)
        return since is not None and since < self._ours


def _difference(before: int | None, after: int | None) -> int | None:
    """None where either is unknown, or the count began anew."""
    return None if before is None or after is None or after < before else after - before


def _count(rank: dict[str, Any], name: str) -> int | None:
    value = rank.get(name)
    return value if type(value) is int and value >= 0 else None
