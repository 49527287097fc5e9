"""What one group sends, in which order and namespace, and what it predicts."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.engines.facts import ServerFacts
from fidelity.events import Corruption
from fidelity.observations import Observation, Recorder
from fidelity.plan_probes import Resend
from fidelity.probes.cells import Cell, plan_hit
from fidelity.probes.resend import Group, complete, run_group, sends_per_group
from fidelity.probes.session import FailedRequestError, Session
from fidelity.servers.running import RunningServer

FACTS = ServerFacts(engine="sglang", version="0.5.21", model="fake", grid=64)
Sent = tuple[list[Observation], list[Corruption]]


@pytest.fixture
def fake(fake_sglang: Any) -> Any:
    made = fake_sglang()
    made.words = ["!", *(f"w{n}" for n in range(1, 400))]
    return made


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[Session, Group]]:
    """A session with the fake, and a group at `length` whose answer is the last word but one."""

    def make(
        fake: Any, length: int = 193, tail: int = 1, facts: ServerFacts = FACTS, min_tail: int = 1
    ) -> tuple[Session, Group]:
        server = RunningServer(url="http://fake", owned=True, client=fake.client())
        recorder = Recorder(tmp_path / "observations.jsonl")
        order = itertools.count().__next__
        session = Session("none", "run-1", server, facts, recorder, order, vocab_size=512)
        cell = Cell(f"L={length} tail={tail}", "suspect", length, tail, "")
        return session, Group("a/b", "w1", range(1, length + 1), cell, plan_hit(cell, facts, min_tail))

    return make


def play(session: Session, group: Group, given: Resend | None = None, min_tail: int = 1) -> Sent:
    sent = list(run_group(session, group, given or Resend(), min_tail, near_tie=0.125))
    records = [one for one in sent if isinstance(one, Observation)]
    return records, [one for one in sent if isinstance(one, Corruption)]


def test_a_clean_group(start: Any, fake: Any) -> None:
    records, corrupt = play(*start(fake))
    assert [one.role for one in records] == ["cold", "cold2", "hit", "hit"]
    prefix = "run-1/none/a/b@193/0/"
    assert [one.namespace for one in records] == [prefix + name for name in ("a", "b", "a", "a")]
    assert [one.answer.cached_tokens for one in records] == [0, 0, 192, 192]
    assert [one.expected_cached for one in records] == [0, 0, 192, 192]
    assert [one.send for one in records] == [1, 1, 2, 3]
    assert all(one.reached for one in records)
    assert corrupt == []
    assert complete(records, Resend())
    assert len(records) == sends_per_group(start(fake)[1].how, Resend())


def test_the_requests_are_those_of_the_records(start: Any, fake: Any) -> None:
    records, _ = play(*start(fake))
    top = [token for token, _ in records[0].answer.top[0]]
    assert len(top) == 20
    assert [body["extra_key"] for body in fake.bodies] == [one.namespace for one in records]
    assert {tuple(body["input_ids"]) for body in fake.bodies} == {tuple(range(1, 194))}
    assert [body.get("token_ids_logprob") for body in fake.bodies] == [None, top, top, top]
    for body in fake.bodies:
        assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 1}
        assert body["logprob_start_len"] == -1
        assert "routed_dp_rank" not in body
    assert [token for token, _ in records[2].answer.asked[0]] == top
    # Nothing is flushed, and no health check shares a batch.
    assert fake.paths == ["/generate"] * 4
    assert {one.alone for one in records} == {None}


def test_only_hits_on_a_server_of_others_are_looked_at_from_both_sides(start: Any, fake: Any) -> None:
    session, group = start(fake)
    session.server = replace(session.server, owned=False)
    records, _ = play(session, group)
    assert fake.paths == ["/generate"] * 2 + ["/v1/loads", "/generate", "/v1/loads"] * 2
    assert [one.alone for one in records] == [None, None, True, True]


def test_the_ids_are_recorded_once(start: Any, fake: Any) -> None:
    records, _ = play(*start(fake))
    assert [len(one.input_ids) for one in records] == [193, 0, 0, 0]


def test_on_the_grid_a_seed_comes_before_the_hits(start: Any, fake: Any) -> None:
    records, _ = play(*start(fake, length=192, tail=64))
    assert [one.role for one in records] == ["cold", "cold2", "seed", "hit", "hit"]
    assert [one.answer.cached_tokens for one in records] == [0, 0, 0, 128, 128]
    assert all(one.reached for one in records)
    assert len(records) == sends_per_group(start(fake, length=192, tail=64)[1].how, Resend())


def test_an_attention_only_cache_gets_a_fresh_seed_for_each_hit(start: Any, fake: Any) -> None:
    fake.strategy = "attention only"
    facts = replace(FACTS, strategy="attention only")
    session, group = start(fake, length=257, tail=65, facts=facts)
    records, _ = play(session, group)
    assert [one.role for one in records] == ["cold", "cold2", "seed", "hit", "seed", "hit"]
    assert [one.length for one in records] == [257, 257, 192, 257, 192, 257]
    assert [one.answer.cached_tokens for one in records] == [0, 0, 0, 192, 0, 192]
    assert records[3].namespace == records[2].namespace != records[5].namespace
    assert len(records) == sends_per_group(group.how, Resend())


def test_under_retreat_the_prediction_follows_the_guard(start: Any, fake: Any) -> None:
    fake.min_tail = 2
    session, group = start(fake, min_tail=2)
    assert not group.how.reachable
    records, _ = play(session, group, Resend(hits=4), min_tail=2)
    assert [one.answer.cached_tokens for one in records] == [0, 0, 0, 128, 128, 128]
    assert [one.expected_cached for one in records] == [0, 0, 0, 128, 128, 128]


def test_a_corrupt_hit_is_told_at_once_and_shown_last(start: Any, fake: Any) -> None:
    fake.fault = "nan"
    session, group = start(fake)
    sent = list(run_group(session, group, Resend(), 1, near_tie=0.125))
    kinds = [one.role if isinstance(one, Observation) else "corruption" for one in sent]
    assert kinds == ["cold", "cold2", "hit", "corruption", "hit", "corruption", "show-cold", "show-hit"]
    first = sent[3]
    assert isinstance(first, Corruption)
    assert first.cold is sent[0]
    assert first.hit is sent[2]
    assert first.agreement.rules == ("NaN: 41 null",)
    cold, hit = sent[6:]
    assert isinstance(cold, Observation)
    assert isinstance(hit, Observation)
    assert cold.answer.cached_tokens == 0
    assert hit.answer.cached_tokens == 192
    assert (cold.max_new_tokens, hit.max_new_tokens) == (16, 16)
    assert hit.namespace == first.hit.namespace
    assert hit.answer.text == " ".join(["!"] * 16)


def test_a_show_that_fails_ends_nothing(start: Any, fake: Any) -> None:
    fake.fault = "hard flip"
    fake.hooks[5] = lambda: httpx.Response(429)
    records, corrupt = play(*start(fake))
    assert [one.role for one in records] == ["cold", "cold2", "hit", "hit"]
    assert len(corrupt) == 2


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_failed_request_ends_the_group(number: int, start: Any, fake: Any) -> None:
    fake.hooks[number] = lambda: httpx.Response(429, json={"error": {"message": "busy"}})
    with pytest.raises(FailedRequestError, match="busy"):
        play(*start(fake))
    assert len(fake.bodies) == number


def test_another_attempt_is_another_namespace(start: Any, fake: Any) -> None:
    session, group = start(fake)
    first, _ = play(session, group)
    second, _ = play(session, replace(group, attempt=1))
    assert {one.namespace for one in first}.isdisjoint(one.namespace for one in second)
    assert [one.answer.cached_tokens for one in second] == [0, 0, 192, 192]


def test_several_data_parallel_ranks_are_pinned_to_one(start: Any, fake: Any) -> None:
    play(*start(fake, facts=replace(FACTS, dp=4)))
    assert [body["routed_dp_rank"] for body in fake.bodies] == [0] * 4


def test_cold_answers_without_logprobs_ask_for_nothing(start: Any, fake: Any) -> None:
    fake.fault, fake.affects = "no logprobs", lambda *_: True
    records, corrupt = play(*start(fake))
    assert all("token_ids_logprob" not in body for body in fake.bodies)
    assert (len(records), corrupt) == (4, [])


@pytest.mark.parametrize(
    ("missing", "is_complete"), [(None, True), (0, False), (1, False), (2, False), (3, False)]
)
def test_complete_needs_every_judged_send(
    missing: int | None, is_complete: bool, start: Any, fake: Any
) -> None:
    records, _ = play(*start(fake))
    kept = [one for n, one in enumerate(records) if n != missing]
    assert complete(kept, Resend()) is is_complete
    assert not complete(kept, Resend(hits=3))


def test_complete_counts_answers_and_not_requests(start: Any, fake: Any) -> None:
    records, _ = play(*start(fake))
    records[2].answer.error = "HTTP 429"
    assert not complete(records, Resend())
    records[2].answer.faces = {"http nan": 1}  # a NaN is an answer
    assert complete(records, Resend())


def test_a_group_may_ask_for_more_logprobs(start: Any, fake: Any) -> None:
    session, group = start(fake)
    records, _ = play(session, replace(group, top_k=24))
    assert [body["top_logprobs_num"] for body in fake.bodies] == [24] * 4
    assert [len(body.get("token_ids_logprob", ())) for body in fake.bodies] == [0, 24, 24, 24]
    assert [len(one.answer.top[0]) for one in records] == [24] * 4
