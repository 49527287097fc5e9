"""Is it an sglang server, and does it still answer: asked without computing anything."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fidelity.engines import sglang
from fidelity.errors import NotWhatWasAskedError, UnreachableError


def client(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake", timeout=30)


def test_facts_from_the_old_paths_too(info: dict[str, Any]) -> None:
    answers = {
        "/get_server_info": info["0.5.17"]["server_info"],
        "/get_model_info": info["0.5.17"]["model_info"],
    }

    def handler(request: httpx.Request) -> httpx.Response:
        found = answers.get(request.url.path)
        return httpx.Response(200, json=found) if found else httpx.Response(404)

    assert sglang.facts(client(handler)).version == "0.5.17"


@pytest.mark.parametrize(
    ("status", "text", "error", "says"),
    [
        (404, "", NotWhatWasAskedError, "not as an sglang server"),
        (200, "<html>", NotWhatWasAskedError, "not as an sglang server"),
        (200, "[]", NotWhatWasAskedError, "not as an sglang server"),
        (401, "", UnreachableError, "refuses the request"),
        (403, "", UnreachableError, "refuses the request"),
    ],
)
def test_a_server_that_is_not_sglang(status: int, text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        sglang.facts(client(lambda _: httpx.Response(status, text=text)))
    assert getattr(caught.value, "hint", None)


def test_no_server_at_all() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    with pytest.raises(UnreachableError, match="no answer from http://fake"):
        sglang.facts(client(handler))
    assert not sglang.answers(client(handler))


@pytest.mark.parametrize(("status", "alive"), [(200, True), (404, True), (503, False)])
def test_alive_without_computing_anything(status: int, alive: bool) -> None:
    paths = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return httpx.Response(status)

    assert sglang.answers(client(handler)) is alive
    assert paths == ["/model_info"]  # /health would run a one-token request
