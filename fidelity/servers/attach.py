"""A server somebody else runs, reached by its URL. Nothing of it is changed, flushed or loaded."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from fidelity.engines import replica
from fidelity.engines.patience import asked_wait
from fidelity.engines.secrets import secrets_in
from fidelity.errors import UsageError
from fidelity.plan import Target
from fidelity.servers.address import check_url
from fidelity.servers.credentials import KEY_VARIABLE, Discreet, read_headers
from fidelity.servers.running import RunningServer


@contextmanager
def attach(target: Target, key: str = KEY_VARIABLE) -> Iterator[RunningServer]:
    """The server at `target.url`, at most `target.rate` requests a second, and none for as long as one asks
    to wait; `key` names the variable that holds its API key. Raises UsageError for a URL, a header file or a
    certificate file that is none."""
    url = check_url(target.url or "")
    headers = read_headers(target.header_file, key)
    pace = Pace(target.rate)
    transport = httpx.HTTPTransport(verify=_trust(target.ca_file), proxy=_proxy(url))
    with httpx.Client(
        base_url=url,
        timeout=target.timeout,
        headers=headers,
        transport=Discreet(transport, secrets_in(headers.items())),
        event_hooks={"request": [pace.wait], "response": [pace.heed]},
    ) as client:
        if target.replicas > 1:
            replica.watch(client, target.replica_header)
        yield RunningServer(url=url, owned=False, client=client)


def _trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    """True trusts what this machine trusts."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as exc:
        raise UsageError(
            f"{ca_file} is no file of certificates: {exc.strerror or exc}",
            "give the authority's certificate in PEM form",
        ) from exc


def _proxy(url: str) -> str | None:
    """The environment's proxy for this address; a client with a transport of its own does not look."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


class Pace:
    """When the next request may leave: `rate` a second at most, and after a Retry-After not before it is
    over. No request is sent again by it."""

    def __init__(self, rate: float | None) -> None:
        self._step = 1 / rate if rate else 0.0
        self._free = 0.0

    def wait(self, request: httpx.Request) -> None:
        """Sleep until the request may leave; it then says how long it `waited`, in seconds."""
        now = time.monotonic()
        waited = max(self._free - now, 0.0)
        if waited:
            time.sleep(waited)
        request.extensions["waited"] = waited
        self._free = max(now, self._free) + self._step

    def heed(self, response: httpx.Response) -> None:
        """Wait as an answer asks."""
        asked = asked_wait(response)
        if asked is not None:
            self._free = max(self._free, time.monotonic() + asked)
