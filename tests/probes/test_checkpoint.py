"""What the checkpoint probe sends, that all of it resumes from one stored state, and which cells a fault
fails."""

from dataclasses import replace
from typing import Any

import pytest

from fidelity import forecast
from fidelity import plan as plans
from fidelity.engines.facts import ServerFacts
from fidelity.plan_probes import DEFAULT_PROBES
from fidelity.probes import checkpoint
from fidelity.verdicts import FAIL, PASS

SMALL = {"probes": ["checkpoint"], "checkpoint": {"prompts": 5}}
FACTS = ServerFacts(engine="sglang", version="0.5.21", model="fake")
NAMES = [f"from 192: +{tail}" for tail in (1, 2, 3, 4)]


def test_it_is_no_part_of_the_default_run() -> None:
    assert "checkpoint" not in DEFAULT_PROBES


def test_the_prefixes_end_one_to_four_tokens_past_a_checkpoint() -> None:
    assert [(cell.length, cell.position) for cell in checkpoint.cells_from(64)] == [
        (193, 192),
        (194, 192),
        (195, 192),
        (196, 192),
    ]
    assert {cell.position for cell in checkpoint.cells_from(80)} == {240}


@pytest.mark.parametrize(("change", "fits"), [({}, True), ({"strategy": "no_buffer"}, False)])
def test_servers_without_such_a_checkpoint_are_left_alone(change: dict[str, Any], fits: bool) -> None:
    said = checkpoint.unfit(plans.build({}), replace(FACTS, **change), True)
    assert (said is None) is fits


def test_every_hit_resumes_from_the_state_that_the_first_193_tokens_left(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    played = play(fake, SMALL)
    assert (played.verdict.state, played.verdict.exit_code) == (PASS, 0)
    assert list(played.cells()) == NAMES
    assert [cell.cached for cell in played.cells().values()] == [{"192": 5}] * 4
    sent = [one for one in played.records if one.probe == "checkpoint"]
    assert len(sent) == 5 * (2 * 4 + 3)
    assert all(one.length == 193 for one in sent if one.role == "seed")
    by_prompt: dict[str, set[tuple[int, ...]]] = {}
    for one in sent:
        if one.role == "cold":
            by_prompt.setdefault(one.prompt, set()).add(tuple(one.input_ids[:193]))
    assert len(by_prompt) == 5
    assert all(len(prefixes) == 1 for prefixes in by_prompt.values())
    for hit in (one for one in sent if one.role == "hit"):
        filled = [one for one in sent if one.namespace == hit.namespace and one.order < hit.order]
        assert [one.length for one in filled] == [193]
    plan, cells = played.manifest.plan, played.manifest.arms["none"].cells
    told = forecast.parts(plan, FACTS, cells, 1, batches=False, screens=True)
    assert sum(part.requests for part in told) == len(played.records)


def test_a_fault_at_one_token_fails_the_first_cell_alone(play: Any, fake_sglang: Any) -> None:
    cells = play(fake_sglang(fault="off-list"), SMALL).cells()
    assert [cell.state for cell in cells.values()] == [FAIL, PASS, PASS, PASS]
    assert cells[NAMES[0]].corrupt == 5
    assert cells[NAMES[0]].rules == {"off-list": 5}


def test_what_is_stored_wrong_fails_all_of_them(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(fault="hard flip", affects=lambda computed, _: computed <= 4), SMALL)
    assert [cell.state for cell in played.cells().values()] == [FAIL] * 4


def test_too_few_hits_are_no_pass(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(), {**SMALL, "prompts": {"count": 3}})
    assert played.verdict.exit_code == 11
    assert "2 of 5 hits did not take the path" in played.cells()[NAMES[0]].reason


def test_hits_that_resume_elsewhere_prove_nothing(play: Any, fake_sglang: Any) -> None:
    cells = play(fake_sglang(says_cached=lambda cached: 128 if cached else 0), SMALL).cells()
    assert cells[NAMES[0]].state == "not exercised"
    assert "cached_tokens 128 instead of 192" in cells[NAMES[0]].reason


def test_a_resumed_run_sends_each_prefix_once(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    first = play(fake, SMALL, stop_after=40)
    again = play(fake, resume=first.directory)
    assert again.verdict.exit_code == 0
    hits = [one for one in again.records if one.role == "hit"]
    assert len(hits) == len({one.group for one in hits}) == 20
