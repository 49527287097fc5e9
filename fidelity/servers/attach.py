"""A server somebody else runs, reached by its URL. Nothing of it is changed, flushed or loaded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from fidelity.errors import UsageError
from fidelity.plan import Target
from fidelity.servers.running import RunningServer

KEY_VARIABLE = "FIDELITY_API_KEY"


@contextmanager
def attach(target: Target) -> Iterator[RunningServer]:
    """The server at `target.url`. Raises UsageError for a URL that is none."""
    url = (target.url or "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"'{target.url}' is not a URL", "give it as http://HOST:PORT")
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, timeout=target.timeout, headers=headers) as client:
        yield RunningServer(url=url, owned=False, client=client)
