"""The second server: asked with a key of its own."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from fidelity.errors import NotWhatWasAskedError, UnreachableError
from fidelity.plan import build
from fidelity.servers.trusted import reference_server

Seen = list[str | None]


@pytest.fixture
def second() -> Iterator[tuple[str, Seen]]:
    """A server that is no sglang; its address, and the keys it was sent."""
    keys: Seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("authorization"))
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", keys
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_targets_key_is_not_sent_to_it(second: tuple[str, Seen], monkeypatch: pytest.MonkeyPatch) -> None:
    url, keys = second
    monkeypatch.setenv("FIDELITY_API_KEY", "of-the-target")
    for own, sent in ((None, None), ("of-the-reference", "Bearer of-the-reference")):
        if own is not None:
            monkeypatch.setenv("FIDELITY_REFERENCE_API_KEY", own)
        keys.clear()
        with (
            pytest.raises(NotWhatWasAskedError, match="answers, but as none of"),
            reference_server(build({"reference": url})),
        ):
            pass
        assert set(keys) == {sent}


def test_one_that_does_not_answer() -> None:
    plan = build({"reference": "http://127.0.0.1:1"})
    with (
        pytest.raises(UnreachableError, match=r"the reference http://127\.0\.0\.1:1: no answer"),
        reference_server(plan),
    ):
        pass
