"""What is the same for every HTTP API: asking what a server says of itself, and what an error comes to."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from fidelity.engines import json_reader, replica
from fidelity.engines.patience import asked_wait
from fidelity.errors import NotWhatWasAskedError, UnreachableError
from fidelity.observations import Answer


@dataclass(frozen=True)
class Reply:
    """`latency` is in seconds, to the whole reply."""

    status: int
    text: str
    latency: float


def post(
    client: httpx.Client,
    path: str,
    body: Mapping[str, Any],
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply | Answer:
    """Send JSON once, within `timeout` seconds (the client's own when None or shorter); an Answer that failed
    where no reply came, or one that asks to wait. Never retries."""
    limits = [limit for limit in (timeout, client.timeout.read) if limit is not None]
    replica.forget(client)
    start = time.perf_counter()
    try:
        response = client.post(path, json=dict(body), timeout=min(limits, default=None), headers=headers)
    except httpx.RequestError as exc:
        return Answer(status=0, latency=time.perf_counter() - start, error=f"{type(exc).__name__}: {exc}")
    replica.heed(client, response)
    # A rate limit makes the request wait before it leaves.
    latency = time.perf_counter() - start - response.request.extensions.get("waited", 0.0)
    wait = asked_wait(response)
    if wait is not None:
        failed = unusable(response.status_code, parsed(response.text), response.text, latency)
        return replace(failed, error=f"{failed.error}; the server asks to wait {wait:g} s")
    return Reply(response.status_code, response.text, latency)


def parsed(text: str) -> Any:
    """The JSON of a body; None where it is none."""
    try:
        return json_reader.parse(text)
    except ValueError:
        return None


def alive(client: httpx.Client, path: str) -> bool:
    """Does the server answer a GET of `path` with anything but a failure of its own?"""
    try:
        return client.get(path, timeout=10).status_code < 500
    except httpx.TransportError:
        return False


def read_body(status: int, text: str, latency: float, read: Callable[[Any], Answer]) -> Answer:
    """The one answer of a response, by `read` of its JSON; every oddity is kept with the raw body."""
    data = parsed(text)
    if status != 200 or data is None:
        return unusable(status, data, text, latency)
    return shaped(lambda: read(data), text, latency)


def shaped(read: Callable[[], Answer], text: str, latency: float) -> Answer:
    """What `read` makes of a body, or where that has another shape than it expects, a failed answer."""
    try:
        return read()
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as exc:
        error = f"the answer has an unknown shape ({type(exc).__name__}: {exc})"
        return Answer(status=200, latency=latency, error=error, raw=text[:20_000])


def unusable(status: int, data: Any, text: str, latency: float) -> Answer:
    """What an HTTP error or a body that is not JSON comes to; `data` is None where it was not."""
    message = json_reader.error_message(data, text)
    faces = {"http nan": 1} if json_reader.is_nan_error(status, message) else {}
    error = f"HTTP {status}: {message}" if status != 200 else "the body is not JSON"
    return Answer(
        status=status, latency=latency, error=error, faces=faces, values=len(faces), raw=text[:20_000]
    )


def check_allowed(status: int, client: httpx.Client) -> None:
    """Raise UnreachableError for an HTTP status that says that we may not."""
    if status in (401, 403):
        raise UnreachableError(
            f"{client.base_url} refuses the request ({status})",
            "set FIDELITY_API_KEY to the deployment's API key, or give its headers with --header-file",
        )


def _place(response: httpx.Response) -> str:
    """Where a redirect leads: scheme, host and path, as the rest may hold a token."""
    try:
        place = response.url.join(response.headers["location"])
        return str(place.copy_with(username=None, password=None, query=None, fragment=None))
    except (KeyError, ValueError, httpx.InvalidURL):
        return "another address"


def first_found(client: httpx.Client, paths: Sequence[str]) -> dict[str, Any] | None:
    """The JSON object that the first of these paths to have one answers a GET with; None without any. Raises
    UnreachableError, NotWhatWasAskedError."""
    for path in paths:
        try:
            response = client.get(path)
        except httpx.TransportError as exc:
            untrusted = "CERTIFICATE_VERIFY_FAILED" in str(exc)
            raise UnreachableError(
                f"no answer from {client.base_url}: {exc}",
                "give the certificate authority that signed its certificate with --ca-file"
                if untrusted
                else "check the address, and that the server is up",
            ) from exc
        check_allowed(response.status_code, client)
        if response.is_redirect:
            raise NotWhatWasAskedError(
                f"{client.base_url} redirects to {_place(response)}",
                "give the address it redirects to: no key is sent to a place that was not named",
            )
        if response.status_code == 200:
            try:
                data = json_reader.parse(response.text)
            except ValueError:
                continue
            if isinstance(data, dict):
                return data
    return None
