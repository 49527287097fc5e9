"""Was a request alone on the server, and how much of it was computed: by the server's own load figures.

A second request makes a batch of two, and a fault at one token does not show in it.
"""

import time
from dataclasses import dataclass
from typing import Any

import httpx

from fidelity.engines import json_reader

_TRIES = 3
_PAUSE = 0.02  # seconds; the figures may trail the reply by a scheduler step


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


def look(client: httpx.Client) -> Load | None:
    """The figures of `/v1/loads`, which computes nothing; None where there are none."""
    try:
        response = client.get("/v1/loads", timeout=10)
        data = json_reader.parse(response.text) if response.status_code == 200 else None
    except (httpx.TransportError, ValueError):
        return None
    ranks = data.get("loads") if isinstance(data, dict) else None
    if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, dict) for rank in ranks):
        return None
    running = [_count(rank, "num_running_reqs") for rank in ranks]
    waiting = [_count(rank, "num_waiting_reqs") or 0 for rank in ranks]
    computed = [_count(rank, "total_prefill_uncached_tokens") for rank in ranks]
    if None in running:
        return None
    known = [count for count in running if count is not None]
    told = [count for count in computed if count is not None]
    return Load(sum(known) + sum(waiting), sum(told) if len(told) == len(ranks) else None)


def look_again(client: httpx.Client, before: Load, own: int | None) -> Witness:
    """After a reply of which `own` tokens were computed: was it alone since `before`?

    Requests that run across either look are counted as busy; one that came and went in between has computed
    tokens beyond our own.
    """
    after = look(client)
    for _ in range(_TRIES):
        if after is None or not (after.busy or _behind(before, after, own)):
            break
        time.sleep(_PAUSE)
        after = look(client)
    if after is None:
        return UNKNOWN
    computed = _difference(before, after)
    others = computed is not None and own is not None and computed > own
    return Witness(not (before.busy or after.busy or others), computed)


def _behind(before: Load, after: Load, own: int | None) -> bool:
    computed = _difference(before, after)
    return computed is not None and own is not None and computed < own


def _difference(before: Load, after: Load) -> int | None:
    if before.computed is None or after.computed is None or after.computed < before.computed:
        return None
    return after.computed - before.computed


def _count(rank: dict[str, Any], name: str) -> int | None:
    value = rank.get(name)
    return value if type(value) is int and value >= 0 else None
