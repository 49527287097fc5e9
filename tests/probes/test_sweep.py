"""Which cells a sweep has on which server, what it sends, and that each hit takes the path it names."""

from dataclasses import replace
from typing import Any

import pytest

from fidelity import forecast
from fidelity import plan as plans
from fidelity.engines.facts import ServerFacts
from fidelity.errors import PlanError
from fidelity.probes import sweep
from fidelity.verdicts import FAIL, PASS

FACTS = ServerFacts(engine="sglang", version="0.5.21", model="m", fault_region=1)
SMALL = {"probes": ["sweep"], "sweep": {"multiples": [1, 2], "beyond": [1, 33]}}


def rows(facts: ServerFacts, **section: Any) -> dict[int, list[int]]:
    """Tails by position."""
    found: dict[int, list[int]] = {}
    for cell in sweep.choose(plans.build({"sweep": section}), facts).cells:
        found.setdefault(cell.position, []).append(cell.tail)
    return found


def left_out(facts: ServerFacts) -> tuple[str, ...]:
    return sweep.choose(plans.build({}), facts).left_out


def test_every_tail_at_the_first_position_and_a_few_at_the_others() -> None:
    found = rows(FACTS)
    assert found.pop(64) == [*range(1, 65), 65, 66, 97]
    assert list(found) == [128, 192, 320, 704, 2112]
    assert set(map(tuple, found.values())) == {(1, 2, 3, 4, 5, 33, 64)}
    assert left_out(FACTS) == ()


def test_the_plan_names_positions_and_tails_past_the_grid() -> None:
    assert rows(FACTS, multiples=[3], beyond=[2]) == {192: [*range(1, 65), 66]}


def test_a_wide_fault_region_is_mapped_to_its_end() -> None:
    found = rows(replace(FACTS, fault_region=8), multiples=[1, 2])
    assert found[128] == [*range(1, 10), 33, 64]


def test_a_coarser_grid_is_mapped_whole() -> None:
    found = rows(replace(FACTS, grid=128), multiples=[1, 2], beyond=[1])
    assert found == {128: list(range(1, 130)), 256: [1, 2, 3, 4, 5, 33, 128]}


def test_without_checkpoints_the_pages_are_taken_in_steps_of_a_chunk() -> None:
    attention = replace(FACTS, strategy="attention only", grid=1)
    assert list(rows(attention, multiples=[1, 3], beyond=[])) == [64, 192]
    assert list(rows(replace(attention, grid=48), multiples=[1], beyond=[])) == [96]


def test_around_the_chunked_prefill_size() -> None:
    found = rows(replace(FACTS, raw={"chunked_prefill_size": 2048}), multiples=[1])
    assert found[1984] == [1, 2, 33, 63, 64]
    assert found[2048] == [1, 2, 33]
    off_the_grid = rows(replace(FACTS, raw={"chunked_prefill_size": 1000}), multiples=[1])
    assert off_the_grid[960] == [1, 2, 33, 39, 40, 41]
    assert off_the_grid[1024] == [1, 2, 33]


@pytest.mark.parametrize("chunk", [-1, None, 64, 8192])
def test_a_server_that_never_splits_a_prompt_has_no_such_lengths(chunk: int | None) -> None:
    found = replace(FACTS, raw={"chunked_prefill_size": chunk, "context_length": 8192})
    assert list(rows(found)) == [64, 128, 192, 320, 704, 2112]
    assert left_out(found) == ()


def test_what_the_context_has_no_room_for_is_left_out_and_said() -> None:
    short = replace(FACTS, raw={"context_length": 2048})
    assert list(rows(short)) == [64, 128, 192, 320, 704]
    assert left_out(short) == (
        "7 cells of 2113 to 2176 tokens are left out: the server's context is 2048 tokens",
    )


def test_a_chunk_beyond_reason_is_left_out_and_said() -> None:
    found = replace(FACTS, raw={"chunked_prefill_size": 65536, "context_length": 262144})
    assert max(rows(found)) == 2112
    assert left_out(found) == ("8 cells of 65473 to 65569 tokens are left out: longer than 20000 tokens",)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"prefix_cache": False}, "prefix cache is off"), ({"strategy": "no_buffer"}, "no_buffer"), ({}, None)],
)
def test_servers_without_a_hit_are_not_swept(change: dict[str, Any], why: str | None) -> None:
    said = sweep.unfit(plans.build({}), replace(FACTS, **change), True)
    assert said is None if why is None else why in (said or "")


@pytest.mark.parametrize("section", [{"multiples": []}, {"multiples": [0]}, {"beyond": [0]}])
def test_a_plan_without_positions_or_with_none_past_the_grid_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="sweep"):
        plans.build({"sweep": section})


def test_each_cell_is_sent_cold_and_then_hit_as_forecast(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(), SMALL)
    assert (played.verdict.state, played.verdict.exit_code) == (PASS, 0)
    sent = [one for one in played.records if one.probe == "sweep"]
    hits = [one for one in sent if one.role == "hit"]
    assert sorted((one.length - one.tail, one.tail) for one in hits) == [
        *((64, tail) for tail in (*range(1, 66), 97)),
        *((128, tail) for tail in (1, 2, 3, 4, 5, 33, 64)),
    ]
    assert all(one.reached and one.tail_seen == one.tail for one in hits)
    assert all(one.answer.cached_tokens == 0 for one in sent if one.role == "cold")
    assert not [one for one in sent if one.role == "cold2"]
    plan, facts = played.manifest.plan, ServerFacts("sglang", "0.5.21", "fake")
    cells = played.manifest.arms["none"].cells
    told = forecast.parts(plan, facts, cells, 1, batches=False, screens=True)
    assert sum(part.requests for part in told) == len(played.records)
    assert len({one.prompt for one in hits}) == 6  # the prompts take turns


def test_a_fault_at_one_token_is_the_only_mark_on_the_map(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(fault="nan"), SMALL)
    assert played.verdict.exit_code == 10
    cells = played.cells()
    assert [cell.state for cell in cells.values()] == [FAIL, FAIL]
    assert [cell.corrupt for cell in cells.values()] == [1, 1]
    assert cells["from 64"].notes == (
        "from 64: 1-65 X" + "." * 64 + "  97 .",
        "corrupt tails: 1; clean: 2 to 65, 97",
    )
    assert cells["from 128"].notes == (
        "from 128: 1-5 X....  33 .  64 .",
        "corrupt tails: 1; clean: 2 to 5, 33, 64",
    )
    # Only a corrupt hit is followed by another cold send.
    assert [one.tail for one in played.records if one.role == "cold2"] == [1, 1]


def test_what_differs_cold_as_well_is_noise_and_no_corruption(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(fault="off-list")
    seen: set[str] = set()

    def affects(computed: int, word: str) -> bool:
        key = fake.bodies[-1]["extra_key"]
        fresh = key not in seen
        seen.add(key)
        return "/sweep/" in key and (key.endswith("/b") or not fresh)

    fake.affects = affects
    played = play(fake, SMALL)
    assert played.verdict.exit_code == 11
    assert {cell.corrupt for cell in played.cells().values()} == {0}
    assert "the cold answer differs from itself as much" in played.cells()["from 128"].missed


def test_resend_and_sweep_share_no_namespace(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(), {**SMALL, "probes": ["resend", "sweep"], "resend": {"positions": [64]}})
    assert played.verdict.exit_code == 0
    names = [{one.namespace for one in played.records if one.probe == name} for name in ("resend", "sweep")]
    assert all(names)
    assert names[0].isdisjoint(names[1])


def test_a_resumed_sweep_sends_each_cell_once(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    first = play(fake, SMALL, stop_after=60)
    again = play(fake, resume=first.directory)
    assert again.verdict.exit_code == 0
    hits = [one for one in again.records if one.role == "hit"]
    assert len(hits) == len({one.group for one in hits}) == 73


def test_a_short_context_is_said_in_the_report(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(info={"context_length": 205}), SMALL)
    assert played.verdict.exit_code == 0
    assert any("1 cells of 192 to 192 tokens are left out" in line for line in played.verdict.warnings)
