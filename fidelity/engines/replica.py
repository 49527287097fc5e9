"""Which replica behind a router answered: by a header of its answer, else by its `system_fingerprint`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import httpx

HEADERS = (
    "x-replica-id",
    "x-replica",
    "x-backend-id",
    "x-backend",
    "x-backend-server",
    "x-worker-id",
    "x-worker-url",
    "x-upstream",
    "x-upstream-addr",
    "x-served-by",
    "x-instance-id",
    "x-pod-name",
)
"""Names in use; a router's own is given with --replica-header."""

_FINGERPRINT = re.compile(r'"system_fingerprint"\s*:\s*"([^"\\]+)"')


@dataclass
class _Watched:
    names: Sequence[str]
    last: str | None = None


_CLIENTS: WeakKeyDictionary[httpx.Client, _Watched] = WeakKeyDictionary()


def watch(client: httpx.Client, header: str | None) -> None:
    """Take note from now on of who answers this client; a `header` that is named is the only one looked
    at."""
    _CLIENTS[client] = _Watched(HEADERS if header is None else (header,))


def is_watched(client: httpx.Client) -> bool:
    """Does this client speak to several servers behind one address?"""
    return client in _CLIENTS


def heed(client: httpx.Client, response: httpx.Response) -> None:
    """Take note of who gave this answer, which has been read whole."""
    watched = _CLIENTS.get(client)
    if watched is None:
        return
    told = [response.headers[name] for name in watched.names if name in response.headers]
    if not told and watched.names is HEADERS:
        told = _FINGERPRINT.findall(response.text)[:1]
    watched.last = told[0] if told else None


def forget(client: httpx.Client) -> None:
    """Before a request, so that the last answer's name is not taken for who leaves this one without any."""
    if client in _CLIENTS:
        _CLIENTS[client].last = None


def last(client: httpx.Client) -> str | None:
    """Who gave the last answer; None where it is not told, or nobody asked to know."""
    watched = _CLIENTS.get(client)
    return None if watched is None else watched.last
