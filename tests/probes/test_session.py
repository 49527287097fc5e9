"""One request in flight, recorded before the next leaves; what each way of failing raises."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import Request
from fidelity.errors import PromptError, UnreachableError
from fidelity.observations import Observation, Recorder, read
from fidelity.probes import session as module
from fidelity.probes.session import FailedRequestError, OutOfTimeError, Session
from fidelity.servers.running import RunningServer

IDS = list(range(1, 101))
FACTS = ServerFacts(engine="sglang", version="0.5.21", model="fake")


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    def make(fake: Any, **given: Any) -> Session:
        server = RunningServer(url="http://fake", owned=False, client=fake.client())
        recorder = Recorder(tmp_path / "observations.jsonl")
        return Session("none", "run-1", server, FACTS, recorder, itertools.count().__next__, **given)

    return make


def record(**given: Any) -> Observation:
    return Observation(arm="none", probe="resend", role="cold", namespace="n", length=100, **given)


@pytest.fixture
def on_disk(tmp_path: Path) -> Callable[[], list[Observation]]:
    return lambda: read(tmp_path / "observations.jsonl")


@pytest.fixture
def fake(fake_sglang: Any) -> Any:
    made = fake_sglang()
    made.words = [f"w{n}" for n in range(200)]
    return made


def busy() -> httpx.Response:
    return httpx.Response(429, json={"error": {"message": "too many requests"}})


def test_a_send_is_recorded_whole(session: Any, fake: Any, on_disk: Any) -> None:
    made = session(fake)
    first = made.send(Request(IDS, "n"), record)
    second = made.send(Request(IDS, "n"), record)
    assert on_disk() == [first, second]
    assert [one.order for one in on_disk()] == [0, 1]
    assert [one.answer.cached_tokens for one in on_disk()] == [0, 64]
    assert second.sent_at >= first.sent_at > 1.7e9


def test_namespaces_belong_to_the_run_the_arm_and_the_purpose(session: Any, fake: Any) -> None:
    made = session(fake)
    assert made.namespace("a/b@193", 0, "a") == "run-1/none/a/b@193/0/a"
    assert made.next_number() != made.next_number()


def test_a_refused_request_is_recorded_and_not_sent_again(session: Any, fake: Any, on_disk: Any) -> None:
    fake.hooks[1] = busy
    with pytest.raises(FailedRequestError, match="HTTP 429: too many requests"):
        session(fake).send(Request(IDS, "n"), record)
    assert len(fake.bodies) == 1
    assert [one.answer.status for one in on_disk()] == [429]


def test_a_nan_that_came_as_an_http_500_is_an_answer(session: Any, fake: Any, on_disk: Any) -> None:
    message = "Out of range float values are not JSON compliant"
    fake.hooks[1] = lambda: httpx.Response(500, json={"error": {"message": message}})
    sent = session(fake).send(Request(IDS, "n"), record)
    assert sent.answer.faces == {"http nan": 1}
    assert on_disk() == [sent]


def test_a_lost_answer_from_a_living_server_is_a_failed_request(
    session: Any, fake: Any, on_disk: Any
) -> None:
    def lost() -> httpx.Response:
        raise httpx.ReadTimeout("timed out")

    fake.hooks[1] = lost
    with pytest.raises(FailedRequestError, match="ReadTimeout"):
        session(fake).send(Request(IDS, "n"), record)
    assert [one.answer.status for one in on_disk()] == [0]
    assert fake.paths == ["/generate", "/model_info"]


def test_a_server_that_is_gone(session: Any, fake: Any, on_disk: Any) -> None:
    fake.dead = True
    with pytest.raises(UnreachableError, match="the server stopped answering") as caught:
        session(fake).send(Request(IDS, "n"), record)
    assert "--resume" in (caught.value.hint or "")
    assert [one.answer.status for one in on_disk()] == [0]


def test_a_server_of_ours_that_died_says_how(session: Any, fake: Any, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("loading\nout of memory\n")
    made = session(fake)
    process = SimpleNamespace(poll=lambda: -9, returncode=-9)
    made.server = RunningServer(
        url="http://fake",
        owned=True,
        client=fake.client(),
        log=log,
        process=process,  # type: ignore[arg-type]
    )
    fake.dead = True
    with pytest.raises(UnreachableError, match=r"ended with code -9(.|\n)*out of memory"):
        made.send(Request(IDS, "n"), record)


@pytest.mark.parametrize("bad", [-1, 512, 10**9])
def test_an_id_outside_the_vocabulary_never_leaves(bad: int, session: Any, fake: Any, on_disk: Any) -> None:
    made = session(fake, vocab_size=512)
    with pytest.raises(PromptError, match="outside the vocabulary of 512"):
        made.send(Request([1, 2, bad], "n"), record)
    with pytest.raises(PromptError):
        made.send_batch([Request([1], "a"), Request([bad], "b")], [record, record])
    assert fake.paths == []
    assert on_disk() == []


def test_a_batch_is_one_request_and_a_record_each(session: Any, fake: Any, on_disk: Any) -> None:
    requests = [Request(IDS, "a"), Request(IDS[:50], "b")]
    records = session(fake).send_batch(requests, [record, partial(record, tail=3)])
    assert len(fake.bodies) == 1
    assert on_disk() == records
    assert [one.answer.prompt_tokens for one in records] == [100, 50]
    assert records[1].tail == 3


def test_a_batch_with_fewer_answers_is_a_failed_request(session: Any, fake: Any, on_disk: Any) -> None:
    other = type(fake)(words=fake.words)
    fake.hooks[1] = lambda: other._generate({**fake.bodies[-1], "input_ids": [IDS], "extra_key": ["a"]})
    with pytest.raises(FailedRequestError, match="fewer answers than requests"):
        session(fake).send_batch([Request(IDS, "a"), Request(IDS, "b")], [record, record])
    assert len(on_disk()) == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    fake_time = SimpleNamespace(monotonic=lambda: made.now, time=lambda: 1.8e9)
    monkeypatch.setattr(module, "time", fake_time)
    return made


def test_nothing_is_sent_when_the_time_is_over(session: Any, fake: Any, clock: Any) -> None:
    made = session(fake, deadline=200.0)
    made.send(Request(IDS, "n"), record)
    clock.now = 200.0
    with pytest.raises(OutOfTimeError):
        made.send(Request(IDS, "n"), record)
    assert len(fake.bodies) == 1


def test_a_request_may_take_no_longer_than_the_plan(session: Any, fake: Any, clock: Any) -> None:
    """What hangs is cut off at the deadline, and that is the end of the time and not of the server."""
    waited = []
    made = session(fake, deadline=103.0)
    note = made.server.client.event_hooks["request"]
    made.server.client.event_hooks = {
        "request": [*note, lambda request: waited.append(request.extensions["timeout"]["read"])]
    }

    def late() -> httpx.Response:
        clock.now = 103.5
        raise httpx.ReadTimeout("timed out")

    fake.hooks[1] = late
    with pytest.raises(OutOfTimeError):
        made.send(Request(IDS, "n"), record)
    assert waited == [3.0]
