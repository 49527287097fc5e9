import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.engines.facts import ServerFacts
from fidelity.observations import Observation, Recorder
from fidelity.plan_probes import Resend
from fidelity.probes import warmup
from fidelity.probes.session import Session
from fidelity.servers.running import RunningServer

FACTS = ServerFacts(engine="sglang", version="0.5.21", model="fake")
PROMPTS = [list(range(n, n + 200)) for n in range(1, 9)]
Start = Callable[..., Session]


@pytest.fixture
def fake(fake_sglang: Any) -> Any:
    made = fake_sglang()
    made.words = [f"w{n}" for n in range(400)]
    return made


@pytest.fixture
def start(tmp_path: Path, fake: Any) -> Start:
    def make(*, batches: bool) -> Session:
        server = RunningServer(url="http://fake", owned=False, client=fake.client())
        recorder = Recorder(tmp_path / "observations.jsonl")
        counter = itertools.count().__next__
        return Session("none", "run-1", server, FACTS, recorder, counter, batches=batches)

    return make


def play(session: Session, given: Resend) -> list[Observation]:
    return list(warmup.warm_up(session, PROMPTS, given))


def test_a_server_of_ours_gets_mixed_lengths_a_batch_and_decode(start: Start, fake: Any) -> None:
    records = play(start(batches=True), Resend())
    assert {one.role for one in records} == {"warmup"}
    assert len(records) == warmup.size(Resend(), 200, batches=True)[0]
    singles = [one for one in records if one.max_new_tokens == 1]
    assert len({one.length for one in singles}) >= 4
    batches = [body for body in fake.bodies if isinstance(body["input_ids"][0], list)]
    assert len(batches) == 1
    assert len(batches[0]["input_ids"]) == 4
    assert len(singles) == 16 + 4
    assert sum(one.max_new_tokens for one in records if one.max_new_tokens > 1) == 256


def test_a_server_that_is_not_ours_gets_single_requests_only(start: Start, fake: Any) -> None:
    records = play(start(batches=False), Resend())
    assert len(records) == len(fake.bodies) == warmup.size(Resend(), 200, batches=False)[0]
    assert all(isinstance(body["input_ids"][0], int) for body in fake.bodies)


def test_nothing_is_served_from_the_cache(start: Start, fake: Any) -> None:
    records = play(start(batches=True), Resend())
    assert len({one.namespace for one in records}) == len(records)
    assert {one.answer.cached_tokens for one in records} == {0}


@pytest.mark.parametrize(
    ("sends", "tokens", "roles"), [(0, 0, 0), (3, 0, 3 + 4), (0, 100, 2), (1, 65, 1 + 4 + 2)]
)
def test_as_much_as_the_plan_says(sends: int, tokens: int, roles: int, start: Start) -> None:
    given = Resend(warmup_sends=sends, warmup_tokens=tokens)
    records = play(start(batches=True), given)
    assert len(records) == roles == warmup.size(given, 200, batches=True)[0]
    decode = records[sends + (4 if sends else 0) :]
    assert sum(one.max_new_tokens for one in decode) == tokens


def test_a_failed_send_is_recorded_and_passed_over(start: Start, fake: Any, tmp_path: Path) -> None:
    fake.hooks[2] = lambda: httpx.Response(429)
    records = play(start(batches=False), Resend(warmup_sends=3, warmup_tokens=0))
    assert len(records) == 2
    lines = (tmp_path / "observations.jsonl").read_text().splitlines()
    assert len(lines) == 3
