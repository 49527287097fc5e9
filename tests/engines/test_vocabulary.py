"""The vocabulary's size from the server's own refusal, asked only where that is known to be harmless."""

import json
from collections.abc import Callable

import httpx
import pytest

from fidelity.engines import vocabulary
from fidelity.engines.facts import ServerFacts


def client(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake")


def refusal(status: int, message: str) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, json={"error": {"message": message}})


MEASURED = "token_ids_logprob contains out-of-vocabulary token id 1000000000; valid range is [0, 2048)."


def test_the_refusal_tells_the_size() -> None:
    bodies = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return refusal(400, MEASURED)(request)

    assert vocabulary.ask(client(handler)) == 2048
    (body,) = bodies
    assert body["input_ids"] == [0]  # the impossible id is never an input
    assert body["token_ids_logprob"] == [1_000_000_000]


@pytest.mark.parametrize(
    ("status", "message"), [(400, "no"), (200, MEASURED), (500, MEASURED), (401, "wrong key")]
)
def test_any_other_answer_tells_nothing(status: int, message: str) -> None:
    assert vocabulary.ask(client(refusal(status, message))) is None


def test_no_answer_tells_nothing() -> None:
    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    assert vocabulary.ask(client(lost)) is None
    assert vocabulary.ask(client(lambda _: httpx.Response(200, text="<html>"))) is None


@pytest.mark.parametrize(
    ("version", "asked"),
    [("0.5.21", True), ("0.5.23", True), ("0.6.0", True), ("0.5.20", False), ("0.5.9", False), ("?", False)],
)
def test_only_releases_measured_to_refuse_are_asked(version: str, asked: bool) -> None:
    facts = ServerFacts(engine="sglang", version=version, model="m")
    assert vocabulary.can_be_asked(facts) is asked
