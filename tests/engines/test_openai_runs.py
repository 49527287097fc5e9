"""Whole runs through the public chat API alone: what fails, what stays open, and that nothing passes that was
not seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fidelity.engines import openai
from fidelity.engines.salt import DIGITS
from fidelity.observations import Observation

from ..fake_openai import FakeOpenAI

TARGET = {"engine": "openai", "assume_idle": True}
LENGTH = 100
"""Tokens; the prompts' answers are their last words but one."""

Runs = Callable[..., Any]


@pytest.fixture
def runs(play: Callable[..., Any]) -> Runs:
    def start(fake: FakeOpenAI, lengths: tuple[int, ...] = (LENGTH,), name: str = "run", **over: Any) -> Any:
        resend = {"lengths": list(lengths)}
        return play(fake, {"target": TARGET, "resend": resend, **over}, name=name)

    return start


def of(role: str, records: list[Observation]) -> list[Observation]:
    return [record for record in records if record.role == role]


def test_a_healthy_server_stays_open_for_want_of_a_control(runs: Runs) -> None:
    played = runs(FakeOpenAI())
    cell = played.cells()["L=100 tail=1"]
    assert (cell.exercised, cell.corrupt, cell.agreement) == (6, 0, {"same": 12})
    assert (cell.state, played.verdict.exit_code) == ("inconclusive", 11)
    assert "no control cell" in cell.reason
    assert cell.divergences.jsd_lower.maximum == 0
    assert any("a salt of" in message for message in played.verdict.arms[0].warnings)


def test_with_a_known_grid_it_passes(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    told = openai.facts
    known = {"grid": 16, "grid_known": True}
    monkeypatch.setattr(openai, "facts", lambda client: replace(told(client), **known))
    played = runs(FakeOpenAI(step=16), (97, 106), thresholds={"max_rate": 0.4, "slack": 0.1})
    cells = played.cells()
    assert set(cells) == {"L=97 tail=1", "L=106 tail=10", "L=97 cold", "L=106 cold"}
    assert (played.verdict.exit_code, {cell.state for cell in cells.values()}) == (0, {"pass"})


@pytest.mark.parametrize(("fault", "state"), [("none", "inconclusive"), ("hard flip", "fail")])
def test_pages_may_hide_a_fault_that_cold_prefills_share(fault: str, state: str, runs: Runs) -> None:
    # A cache that cuts cold prefills at the last page serves the same counts: no pass, but still a fail.
    played = runs(FakeOpenAI(step=16, fault=fault), (97, 106), thresholds={"max_rate": 0.4, "slack": 0.1})
    cell = played.cells()["L=97 tail=1"]
    assert cell.state == state
    assert fault != "none" or "the counts do not tell whether cold prefills are cut" in cell.reason
    assert not of("longer", played.records)
    assert played.verdict.exit_code == (10 if state == "fail" else 11)
    facts = played.manifest.arms["none"].facts
    assert "counts do not tell" in facts["cold_shares_step"]
    assert facts["lacks"]["apart"] == facts["cold_shares_step"]


def test_cold_and_hit_are_the_same_messages_and_no_other_namespace_is(runs: Runs) -> None:
    fake = FakeOpenAI()
    played = runs(fake)
    measured = [record for record in played.records if record.probe == "resend"]
    bodies = fake.bodies[-len(measured) :]
    messages = [str(body["messages"]) for body in bodies]
    namespaces = [record.namespace for record in measured]
    assert [messages.index(one) for one in messages] == [namespaces.index(one) for one in namespaces]
    assert {record.answer.prompt_tokens for record in measured} == {LENGTH}
    assert all(record.answer.cached_tokens == LENGTH - 1 for record in of("hit", measured))
    salt = 2 * DIGITS + 3
    assert all(record.answer.cached_tokens <= record.shared == salt for record in of("cold", measured))
    assert not any(record.input_ids for record in played.records)
    assert played.manifest.arms["none"].cells[0].length == LENGTH


@pytest.mark.parametrize(("fault", "rule"), [("nan", "NaN"), ("flat", "flat row"), ("hard flip", None)])
def test_a_fault_at_one_token_fails(fault: str, rule: str | None, runs: Runs) -> None:
    played = runs(FakeOpenAI(fault=fault))
    cell = played.cells()["L=100 tail=1"]
    assert (cell.state, cell.corrupt, played.verdict.exit_code) == ("fail", 6, 10)
    assert list(cell.rules) == ([rule] if rule else [])
    assert played.cells()["L=100 cold"].state != "fail"


def test_mlx_like_lists_are_no_alarm_and_are_told(runs: Runs) -> None:
    played = runs(FakeOpenAI(lists="mlx", most=11))
    cell = played.cells()["L=100 tail=1"]
    assert (cell.agreement, cell.corrupt) == ({"same": 12}, 0)
    warnings = "; ".join(played.verdict.arms[0].warnings)
    assert "list their top logprobs out of order" in warnings
    assert "at most 11 top logprobs" in warnings


def test_mlx_like_lists_hide_no_fault(runs: Runs) -> None:
    played = runs(FakeOpenAI(lists="mlx", most=11, fault="hard flip"))
    assert played.cells()["L=100 tail=1"].agreement == {"hard flip": 12}


def test_answers_behind_two_salts_are_not_held_against_each_other(runs: Runs) -> None:
    # Every second cold answer is another one: with a cache of namespaces that would be a fault.
    fake = FakeOpenAI(fault="hard flip")

    def every_second(computed: int, _: str) -> bool:
        return computed > 50 and fake.bodies[-1] not in fake.bodies[:-1] and len(fake.bodies) % 2 == 0

    fake.affects = every_second
    played = runs(fake)
    floor = played.cells()["L=100 cold"]
    assert floor.corrupt == 0
    assert floor.agreement == {"other tokens": 6}


def test_a_broken_cold_answer_still_fails(runs: Runs) -> None:
    fake = FakeOpenAI(fault="nan")
    fake.affects = lambda computed, _: computed > 50 and len(fake.bodies) > 45
    assert runs(fake).verdict.exit_code == 10


@pytest.mark.parametrize(
    ("habits", "says"),
    [
        ({"tells": "never"}, "the server reports no cached_tokens"),
        ({"caching": False, "step": 1024}, "no hit: cached_tokens 0 instead of 99"),
        ({"says_prompt": lambda count: count + (count == 100)}, "prompt_tokens"),
    ],
)
def test_a_hit_that_is_not_proven_is_not_exercised(habits: dict[str, Any], says: str, runs: Runs) -> None:
    played = runs(FakeOpenAI(**habits))
    cell = played.cells()["L=100 tail=1"]
    assert (cell.state, played.verdict.exit_code) == ("not exercised", 11)
    assert says in cell.reason


def test_without_logprobs_a_right_answer_that_turns_wrong_fails(runs: Runs) -> None:
    played = runs(FakeOpenAI(most=0, fault="off-list"))
    cell = played.cells()["L=100 tail=1"]
    assert (cell.state, cell.corrupt) == ("fail", 6)
    assert cell.reason == "6 of 6 answers are right cold and cold again, and wrong as a re-send"


def test_without_logprobs_a_healthy_server_does_not_pass(runs: Runs) -> None:
    played = runs(FakeOpenAI(most=0))
    assert played.verdict.exit_code == 11
    assert played.cells()["L=100 tail=1"].state == "not exercised"
    assert any("texts are compared" in message for message in played.verdict.arms[0].warnings)


def test_impact_cannot_pass_without_logprobs(runs: Runs) -> None:
    over = {"probes": ["impact"], "impact": {"prompts": 12, "tokens": 4}, "thresholds": {"alpha": 0.05}}
    played = runs(FakeOpenAI(most=0), **over)
    assert played.cells()["regenerate"].state == "pass"
    assert played.verdict.exit_code == 11
    assert "distributions are not" in played.verdict.reason
    broken = runs(FakeOpenAI(most=0, fault="off-list"), name="broken", **over)
    assert broken.verdict.exit_code == 10


def test_exact_says_nothing_of_two_salts(runs: Runs) -> None:
    played = runs(FakeOpenAI(), exact=True)
    cell = played.cells()["cold again"]
    assert cell.state == "not exercised"
    assert "another salt" in cell.reason


def test_max_requests_counts_what_learns_lengths(runs: Runs) -> None:
    fake = FakeOpenAI()
    played = runs(fake, max_requests=10)
    assert played.manifest.status == "out of requests"
    assert len(fake.bodies) == 10


def test_several_addresses_cannot_be_held_against_each_other(play: Callable[..., Any]) -> None:
    arms = [{"name": name, "url": f"http://{name}:1"} for name in "ab"]
    wrong = FakeOpenAI(step=64, fault="hard flip", affects=lambda number, role: True)
    over = {"target": TARGET, "arms": arms, "thresholds": {"slack": 0.1}}
    played = play({"a": FakeOpenAI(step=64), "b": wrong}, over)
    (found,) = played.verdict.comparisons
    assert (found.state, found.arms, played.verdict.exit_code) == ("inconclusive", ("a", "b"), 11)
    assert "prompts are salted per address" in found.reason
