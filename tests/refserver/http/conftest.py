"""A running embedded server on the seeded random profile, one per settings, shared by the session."""

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from fidelity.refserver.app import create_app
from fidelity.refserver.service import Service, start
from fidelity.refserver.settings import Settings


class Client:
    """HTTP to one server, and the sends the tests have in common."""

    def __init__(self, service: Service, url: str) -> None:
        self.service = service
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=30)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def generate(self, ids: Any, new: int = 1, **fields: Any) -> Any:
        """One greedy `/generate` that must succeed: its JSON."""
        params = {"temperature": 0, "max_new_tokens": new, **fields.pop("params", {})}
        reply = self.post("/generate", {"input_ids": ids, "sampling_params": params, **fields})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def cached(self, ids: list[int], sends: int, **fields: Any) -> list[int]:
        """`cached_tokens` of identical sends in a fresh namespace."""
        fields = {"extra_key": uuid.uuid4().hex, **fields}
        return [self.generate(ids, **fields)["meta_info"]["cached_tokens"] for _ in range(sends)]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ids of ordinary tokens."""
    return np.random.default_rng([length, seed]).integers(0, 2000, length).tolist()


def first(reply: Any) -> float | None:
    """The logprob of a reply's first token."""
    value: float | None = reply["meta_info"]["output_token_logprobs"][0][0]
    return value


def listen(service: Service) -> tuple[uvicorn.Server, threading.Thread, str]:
    """Serve on a free port in a thread; returns once it answers."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(service), lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    return server, thread, f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., Client]]:
    """`serve(fault="split-k-nan", ...)`: a client of a server with these settings, started on first use."""
    running: dict[Settings, tuple[Client, uvicorn.Server, threading.Thread]] = {}

    def client(**fields: Any) -> Client:
        settings = Settings(**{"profile": "random", **fields})
        if settings not in running:
            service = start(settings)
            server, thread, url = listen(service)
            running[settings] = (Client(service, url), server, thread)
        return running[settings][0]

    yield client
    for _, server, _ in running.values():
        server.should_exit = True
    for found, _, thread in running.values():
        found.http.close()
        thread.join(5)
        found.service.scheduler.stop()


@pytest.fixture
def clean(serve: Callable[..., Client]) -> Client:
    """A server without a fault."""
    return serve()


@pytest.fixture
def nan(serve: Callable[..., Client]) -> Client:
    """A server that accumulates onto NaN when one token is computed."""
    return serve(fault="split-k-nan")


@pytest.fixture
def namespace() -> str:
    """A cache namespace no other test uses."""
    return uuid.uuid4().hex
