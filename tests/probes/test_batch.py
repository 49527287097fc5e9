"""What the batch probe sends, on the server in memory, and what it makes of servers that cannot take it."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fidelity.engines.facts import ServerFacts
from fidelity.events import ServerReady
from fidelity.probes.batch import kind_of
from fidelity.probes.rows import Way, find_way, order_canaries

Play = Callable[..., Any]

SMALL = {
    "target": {"allow_load": True},
    "probes": ["batch"],
    "batch": {"sizes": [1, 2, 4], "rounds": 5, "tokens": 3, "ragged": 5},
}
"""On an attached server without a log: no request can be shown to have run as one batch."""


def rows(played: Any, cell: str, role: str = "row") -> list[Any]:
    return [one for one in played.records if one.cell == cell and one.role == role]


def test_every_row_is_a_hit_of_its_own_prompt_and_is_scored(play: Play, fake_sglang: Any) -> None:
    fake = fake_sglang()
    played = play(fake, SMALL)
    for size, requests in ((1, 5), (2, 3), (4, 2)):
        sent = rows(played, f"M={size}")
        assert Counter(Counter(one.batch for one in sent).values()) == {size: requests}
        assert [one.row for one in sent] == list(range(size)) * requests
        assert all(one.answer.cached_tokens == one.expected_cached == 192 for one in sent)
        assert len({one.namespace for one in sent}) == len(sent)
        assert all(len(one.answer.output_ids) == 3 and one.answer.asked for one in sent)
        scored = rows(played, f"M={size}", "rescore")
        assert [one.prompt for one in scored] == [one.prompt for one in sent]
        assert all(len(one.answer.scored) == 3 for one in scored)
    lists = [body for body in fake.bodies if isinstance(body["extra_key"], list)][1:]
    assert [len(body["input_ids"]) for body in lists] == [2, 2, 2, 4, 4, 5]
    assert [body["sampling_params"]["max_new_tokens"] for body in lists] == [3] * 5 + [1]
    assert all(body["sampling_params"].get("ignore_eos") for body in lists[:5])


def test_the_rows_of_one_request_answer_differently(play: Play, fake_sglang: Any) -> None:
    played = play(fake_sglang(), SMALL)
    for batch in {one.batch for one in rows(played, "M=4")}:
        answers = [one.answer.output_ids[0] for one in rows(played, "M=4") if one.batch == batch]
        assert len(set(answers)) == 4


def test_the_ragged_fill_is_one_request_of_several_lengths(play: Play, fake_sglang: Any) -> None:
    played = play(fake_sglang(), SMALL)
    fill = rows(played, "ragged rows", "fill")
    assert [one.length for one in fill] == [225, 289, 353, 417, 225]
    assert len({one.batch for one in fill}) == 1
    assert all(one.answer.cached_tokens == 0 for one in fill)
    for role in ("hit", "ragged-hit"):
        hits = rows(played, "ragged fill", role)
        assert [one.answer.computed for one in hits] == [33] * 5
        assert all(one.reached for one in hits)
    assert {one.namespace for one in fill} == {o.namespace for o in rows(played, "ragged fill", "ragged-hit")}


def test_as_many_requests_as_were_foretold(play: Play, fake_sglang: Any) -> None:
    played = play(fake_sglang(), SMALL)
    ready = next(event for event in played.events if isinstance(event, ServerReady))
    assert ready.requests == len(played.records)


def test_what_nothing_shows_to_have_run_together_is_no_pass(play: Play, fake_sglang: Any) -> None:
    cells = play(fake_sglang(), SMALL).cells()
    assert cells["M=1"].state == "pass"
    assert cells["M=2"].state == "inconclusive"
    assert "assumed, not shown, that 6 of 6 rows ran together" in cells["M=2"].reason
    assert cells["ragged fill"].state == "inconclusive"


def test_a_fault_at_one_token_shows_in_a_single_row_alone(play: Play, fake_sglang: Any) -> None:
    cells = play(fake_sglang(fault="nan"), SMALL).cells()
    assert {name: cell.corrupt for name, cell in cells.items()} == {
        "M=1": 5,
        "M=2": 0,
        "M=4": 0,
        "ragged rows": 0,
        "ragged fill": 0,
    }
    assert cells["M=1"].state == "fail"


def test_a_server_that_may_not_be_loaded(play: Play, fake_sglang: Any) -> None:
    played = play(fake_sglang(), SMALL | {"target": {}})
    (cell,) = played.verdict.arms[0].cells
    assert cell.state == "not applicable"
    assert "--allow-load" in cell.reason
    assert {one.role for one in played.records} == {"warmup"}


def test_sizes_that_the_server_or_the_prompts_do_not_reach(play: Play, fake_sglang: Any) -> None:
    over = SMALL | {"batch": {**SMALL["batch"], "sizes": [2, 8, 16], "ragged": 0}}
    played = play(fake_sglang(info={"max_running_requests": 8}), over)
    cells = played.cells()
    assert (cells["M=8"].state, cells["M=16"].state) == ("not exercised", "not applicable")
    assert cells["M=8"].reason == "it needs 8 prompts, and the run has 6"
    assert cells["M=16"].reason == "the server runs at most 8 requests at once"
    assert {one.cell for one in played.records if one.role == "row"} == {"M=2"}


def test_without_a_prefix_cache_the_rows_are_cold(play: Play, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"disable_radix_cache": True}, caching=False)
    played = play(fake, SMALL)
    cells = played.cells()
    assert all(one.answer.cached_tokens == one.expected_cached == 0 for one in rows(played, "M=4"))
    assert cells["M=1"].state == "pass"
    assert "1 row in one request, cold" in cells["M=1"].why
    assert cells["ragged fill"].state == "not applicable"
    assert "no prefix cache" in cells["ragged fill"].reason


def test_a_state_kept_at_the_exact_end_is_reached_by_a_shorter_seed(play: Play, fake_sglang: Any) -> None:
    played = play(fake_sglang(strategy="no_buffer"), SMALL)
    assert all(one.answer.cached_tokens == 192 for one in rows(played, "M=4"))
    assert {one.length for one in rows(played, "M=4", "seed")} == {192}
    assert "ragged rows" not in played.cells()
    assert all(one.reached for one in rows(played, "ragged fill", "ragged-hit"))


def test_a_failed_request_starts_its_group_again_elsewhere(play: Play, fake_sglang: Any) -> None:
    fake, failed = fake_sglang(), []

    def sees(request: httpx.Request) -> httpx.Response | None:
        if request.url.path != "/generate" or failed or b'"extra_key":[' not in request.content:
            return None
        if b"M=4" not in request.content:
            return None
        failed.append(request)
        return httpx.Response(503, json={"error": {"message": "overloaded"}})

    fake.sees = sees
    sent = rows(play(fake, SMALL), "M=4")
    assert [one.attempt for one in sent] == [0] * 4 + [1] * 4 + [0] * 4
    assert all(one.answer.failed for one in sent[:4])
    assert not any(one.answer.failed for one in sent[4:])
    assert len({one.namespace for one in sent}) == len(sent)


def test_a_killed_run_goes_on_with_the_groups_it_has_not(play: Play, fake_sglang: Any) -> None:
    part = play(fake_sglang(), SMALL, stop_after=45)
    done = {one.group for one in part.records if one.role == "row"}
    rest = play(fake_sglang(), SMALL, resume=part.directory)
    whole = play(fake_sglang(), SMALL, name="whole")
    assert done
    assert Counter(one.group for one in rest.records if one.role == "row" and one.group in done) == Counter(
        one.group for one in whole.records if one.role == "row" and one.group in done
    )
    states = [
        {name: (cell.state, cell.exercised) for name, cell in run.cells().items()} for run in (rest, whole)
    ]
    assert states[0] == states[1]


def test_the_rank_is_pinned(play: Play, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"dp_size": 2})
    play(fake, SMALL)
    lists = [body for body in fake.bodies if isinstance(body["extra_key"], list)]
    assert [body.get("routed_dp_rank") for body in lists[1:]] == [0] * 6


def test_prompts_that_begin_like_another_come_last() -> None:
    taken = [SimpleNamespace(id=name) for name in "abcde"]
    begins = {"a": 1, "b": 1, "c": 2, "e": 3}  # of d, nothing came
    assert order_canaries(SimpleNamespace(taken=taken, begins=begins)) == ["a", "c", "e", "b", "d"]


@pytest.mark.parametrize(
    ("region", "tail", "suspects"),
    [(1, 1, [1]), (2, 1, [1, 2]), (4, 1, [1, 2, 3, 4]), (4, 2, [1, 2]), (0, 1, [1]), (None, 1, [1, 2, 3, 4])],
)
def test_suspects_by_the_tokens_of_the_whole_batch(
    region: int | None, tail: int, suspects: list[int]
) -> None:
    sizes = (1, 2, 3, 4, 5, 8, 16)
    assert [size for size in sizes if kind_of(size, tail, region) == "suspect"] == suspects


@pytest.mark.parametrize(
    ("facts", "min_tail", "way"),
    [
        ({}, 1, Way(193, 1, 192)),
        ({}, 2, Way(193, 2, 128)),
        ({"strategy": "no_buffer"}, 1, Way(192, 1, 192)),
        ({"strategy": "attention only", "grid": 1}, 1, Way(193, 1, 192)),
        ({"prefix_cache": False}, 1, None),
    ],
)
def test_the_way_to_a_hit(facts: dict[str, Any], min_tail: int, way: Way | None) -> None:
    server = ServerFacts(engine="sglang", version="0.5.21", model="m", **facts)
    assert find_way(193, 192, server, min_tail) == way
