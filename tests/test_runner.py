"""Whole runs against a server in memory, each with its own fault: what is recorded and what is concluded."""

from pathlib import Path
from typing import Any

import pytest

from fidelity import events
from fidelity.plan import build
from fidelity.prompting import order_prompts
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS

SUSPECT, CONTROL = "L=193 tail=1", "L=225 tail=33"


def test_a_healthy_server_passes(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    played = play(fake, {"prompts": {"count": 30}, "thresholds": {"max_rate": 0.1}})
    assert (played.verdict.state, played.verdict.exit_code) == (PASS, 0)
    assert played.verdict.bound == "0 corrupt prompts of 30: at most 10 % at 95 %"
    suspect = played.cells()[SUSPECT]
    assert suspect.reason == "0 corrupt prompts of 30: at most 9.6 % at 95%"
    assert (suspect.tails, suspect.cached, suspect.missed) == ({"1": 60}, {"192": 60}, {})
    assert played.verdict.arms[0].cold_right == 60
    assert len(played.records) == 2 + 1 + 30 * (1 + 2 * 4)
    told = {"/server_info", "/model_info", "/tokenize", "/v1/loads"}
    assert set(fake.paths) == {*told, "/generate"}  # and no flush
    assert played.manifest.status == "complete"


def test_events_tell_the_whole_story(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(fault="nan"))
    kinds = [type(event) for event in played.events]
    assert kinds[0] is events.ServerStarting
    assert kinds[-2:] == [events.ArmDone, events.RunEnded]
    ready = next(event for event in played.events if isinstance(event, events.ServerReady))
    assert [cell.name for cell in ready.cells] == [SUSPECT, CONTROL]
    sent = [event.observation for event in played.events if isinstance(event, events.Sent)]
    assert repr(sent) == repr(played.records)
    corrupt = [event for event in played.events if isinstance(event, events.Corruption)]
    assert len(corrupt) == 12
    # The proof is told before the next request leaves.
    first = next(n for n, event in enumerate(played.events) if isinstance(event, events.Corruption))
    before = played.events[first - 1]
    assert isinstance(before, events.Sent)
    assert before.observation is corrupt[0].hit
    shows = sum(one.role.startswith("show") for one in played.records)
    assert ready.requests == len(played.records) - shows


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("nan", "6 corrupt prompts of 6: NaN in 12 sends"),
        ("nan 500", "6 corrupt prompts of 6: NaN in 12 sends"),
        ("hard flip", "6 corrupt prompts of 6: at least 60.7% at 95%"),
        ("off-list", "6 corrupt prompts of 6: at least 60.7% at 95%"),
        ("flat", "6 corrupt prompts of 6: flat row in 12 sends"),
    ],
)
def test_a_fault_at_one_token_fails_the_suspect_only(
    fault: str, says: str, play: Any, fake_sglang: Any
) -> None:
    played = play(fake_sglang(fault=fault))
    assert (played.verdict.state, played.verdict.exit_code) == (FAIL, 10)
    found = played.cells()
    assert found[SUSPECT].state == FAIL
    assert found[SUSPECT].reason == says
    assert found[SUSPECT].corrupt == 6
    assert {found[name].state for name in (CONTROL, "L=193 cold", "L=225 cold")} == {PASS}
    assert found[SUSPECT].examples[0].cold.split()[0].startswith(("echo", "repeat"))
    assert played.verdict.arms[0].failed_requests == 0


def test_a_wrong_answer_is_readable_in_the_record(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(fault="nan"))
    example = played.cells()[SUSPECT].examples[0]
    assert example.other == " ".join(["!"] * 16)
    assert example.why == "NaN: 41 null"
    assert (example.cached_tokens, example.tail) == (192, 1)


def test_a_fault_at_5_percent_of_the_prompts(play: Any, fake_sglang: Any, prompt_folder: Path) -> None:
    over = {"prompts": {"folder": str(prompt_folder), "count": 20}, "thresholds": {"max_rate": 0.1}}
    word = order_prompts(build(over))[7].item.answer
    rare = lambda computed, answer: computed == 1 and answer == word  # noqa: E731
    played = play(fake_sglang(fault="hard flip", affects=rare), over)
    suspect = played.cells()[SUSPECT]
    assert suspect.agreement == {"same": 38, "hard flip": 2}
    assert (suspect.corrupt, suspect.state, played.verdict.exit_code) == (1, INCONCLUSIVE, 11)
    assert suspect.reason.startswith("1 corrupt prompts of 20: at most 21.7 % at 95%")
    nan = play(fake_sglang(fault="nan", affects=rare), over, name="nan")
    assert nan.verdict.exit_code == 10
    assert nan.cells()[SUSPECT].reason == "1 corrupt prompts of 20: NaN in 2 sends"


def test_near_ties_flip_and_are_no_corruption(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(fault="near-tie", top=0.48, second=0.45)
    played = play(fake, {"thresholds": {"sure": 0.4}})
    suspect = played.cells()[SUSPECT]
    assert suspect.agreement == {"near-tie": 12}
    assert suspect.corrupt == 0
    assert played.verdict.state != FAIL


def test_a_server_that_is_sure_of_nothing(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(top=0.6))
    (arm,) = played.verdict.arms
    assert arm.unsure
    assert "unsure model" in arm.reason
    assert played.cells()[SUSPECT].prompts == 6
    screens = [one for one in played.records if one.role == "screen"]
    assert len(screens) == 12


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"caching": False}, "no hit: cached_tokens 0 instead of 192 (12 sends)"),
        ({"strategy": "no_buffer"}, "no hit: cached_tokens 0 instead of 192 (12 sends)"),
        ({"says_cached": lambda _: None}, "the server reports no cached_tokens (12 sends)"),
        ({"says_cached": lambda n: n and n - 64}, "cached_tokens 128 instead of 192 (12 sends)"),
        ({"says_prompt": lambda n: n + 1}, "prompt_tokens 194 instead of 193 (12 sends)"),
        ({"fault": "no logprobs"}, "the answer has no logprobs (12 sends)"),
    ],
)
def test_what_did_not_take_the_path_is_not_exercised(
    given: dict[str, Any], reason: str, play: Any, fake_sglang: Any
) -> None:
    played = play(fake_sglang(**given))
    assert (played.verdict.state, played.verdict.exit_code) == (INCONCLUSIVE, 11)
    assert played.cells()[SUSPECT].state == NOT_EXERCISED
    assert played.cells()[SUSPECT].reason == reason
    assert f"{SUSPECT} not exercised: {reason}" in played.verdict.reason
    assert played.verdict.bound == ""


def test_cold_sends_from_the_cache_prove_nothing(play: Any, fake_sglang: Any) -> None:
    """A server that ignores the namespace."""
    played = play(fake_sglang(namespaces=False))
    assert played.verdict.exit_code == 11
    assert {cell.state for cell in played.cells().values()} == {NOT_EXERCISED}
    assert played.cells()[SUSPECT].reason == "the cold send was served from the cache (12 sends)"


def test_logprobs_that_never_come(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(fault="no logprobs", affects=lambda *_: True))
    assert played.verdict.exit_code == 11
    assert {cell.state for cell in played.cells().values()} == {NOT_EXERCISED}


def test_a_first_request_that_differs_is_a_warm_up(play: Any, fake_sglang: Any) -> None:
    odd, fake = fake_sglang(fault="nan", affects=lambda *_: True), fake_sglang()
    odd.words = fake.words
    fake.hooks[1] = lambda: odd._generate(fake.bodies[-1])
    played = play(fake)
    assert played.records[0].role == "warmup"
    assert played.records[0].answer.faces == {"null": 21}
    assert played.verdict.exit_code == 0
