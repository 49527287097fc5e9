"""What lets us into a deployment: an API key or headers, sent with every request and kept in no record."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx

from fidelity.engines.secrets import hide
from fidelity.errors import UsageError

KEY_VARIABLE = "FIDELITY_API_KEY"
REFERENCE_KEY_VARIABLE = "FIDELITY_REFERENCE_API_KEY"
"""A second server has a key of its own: neither's is sent to the other."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")


def read_headers(header_file: Path | None, variable: str = KEY_VARIABLE) -> dict[str, str]:
    """The key in this variable of the environment as a bearer token, then the file's lines `Name: value`,
    which win.

    Empty lines and lines that begin with # are passed over. Raises UsageError, which quotes no value.
    """
    headers: dict[str, str] = {}
    key = os.environ.get(variable, "").strip()
    if key:
        if not _VALUE.fullmatch(key):
            raise UsageError(f"{variable} holds characters that no HTTP header can carry")
        headers["authorization"] = f"Bearer {key}"
    for number, line in enumerate(_lines(header_file), start=1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError(f"{header_file} line {number} is not a header", "write each as `Name: value`")
        headers[name.lower()] = value
    return headers


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"cannot read the header file {path}: {reason}") from exc


class Discreet(httpx.BaseTransport):
    """Hides the secrets wherever an answer repeats them: some gateways quote a wrong key in their error."""

    def __init__(self, inner: httpx.BaseTransport, secrets: tuple[str, ...]) -> None:
        self._inner, self._secrets = inner, secrets

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        streams = "event-stream" in response.headers.get("content-type", "")
        if not streams:
            response.read()
        headers = [
            (name, hide(value, self._secrets))
            for name, value in response.headers.multi_items()
            if name not in ("content-encoding", "content-length", "transfer-encoding")
        ]
        if streams:
            lines = _HiddenLines(response, self._secrets)
            return httpx.Response(response.status_code, headers=headers, stream=lines)
        text = hide(response.content.decode("utf-8", errors="replace"), self._secrets)
        response.close()
        return httpx.Response(response.status_code, headers=headers, content=text.encode("utf-8"))

    def close(self) -> None:
        self._inner.close()


class _HiddenLines(httpx.SyncByteStream):
    """A stream passed on line by line as it comes, as no event is longer than its line."""

    def __init__(self, response: httpx.Response, secrets: tuple[str, ...]) -> None:
        self._response, self._secrets = response, secrets

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._response.iter_bytes():
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield self._hide(b"\n".join(lines) + b"\n")
        if rest:
            yield self._hide(rest)

    def _hide(self, data: bytes) -> bytes:
        return hide(data.decode("utf-8", errors="replace"), self._secrets).encode("utf-8")

    def close(self) -> None:
        self._response.close()
