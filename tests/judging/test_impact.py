"""The impact verdict on records made by hand: what a pattern needs to fail, to pass, and to say nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging import impact
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.probes.cells import Cell
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
)

PLAN = plans.build({"probes": ["impact"]})
RIGHT = {"output_ids": [5], "text": "Paris"}
WRONG = {"output_ids": [99], "text": "Dhaka"}
CALLED = {
    "output_ids": [],
    "top": [],
    "logprobs": [],
    "text": "",
    "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}],
}
SAID = {"output_ids": [], "top": [], "logprobs": [], "text": "Hg"}


@pytest.fixture
def group(observation: Callable[..., Observation]) -> Callable[..., list[Observation]]:
    """One prompt of a pattern: cold, cold2 and the hit, each as given."""

    def make(
        number: int,
        hit: dict[str, Any] = RIGHT,
        again: dict[str, Any] = RIGHT,
        cold: dict[str, Any] = RIGHT,
        *,
        cell: str = "regenerate",
        **every: Any,
    ) -> list[Observation]:
        own = {
            "probe": "impact",
            "cell": cell,
            "prompt": f"p{number}",
            "group": f"{cell}: p{number}",
            **every,
        }
        return [
            observation(role="cold", **{"cached_tokens": 0, "expected_cached": 0, **own, **cold}),
            observation(role="cold2", **{"cached_tokens": 0, "expected_cached": 0, **own, **again}),
            observation(role="hit", **{"expected_cached": 192, **own, **hit}),
        ]

    return make


def judged(
    groups: Sequence[list[Observation]], cell: str = "regenerate", *, min_tail: int = 1, **skipped: str
) -> CellVerdict:
    cells = [Cell("L=193 tail=1", "suspect", 193, 1, ""), Cell("L=194 tail=2", "control", 194, 2, "")]
    record = ArmRecord("none", min_tail, cells=cells)
    record.skipped = {f"impact, {name}": reason for name, reason in skipped.items()}
    observations = [obs for group in groups for obs in group]
    found = impact.judge(PLAN, PLAN.arms[0], record, observations, PLAN.thresholds)
    return next(one for one in found if one.name == cell)


def readings(cell: CellVerdict) -> dict[str, float]:
    return {one.name: one.value for one in cell.readings}


def test_ten_answers_that_only_the_hit_changes_fail(group: Any) -> None:
    cell = judged([group(n, hit=WRONG) for n in range(10)])
    assert (cell.state, cell.corrupt, cell.exercised) == (FAIL, 10, 10)
    assert cell.reason.startswith("10 of 10 answers changed by the hit alone, 0 by a second cold send alone")
    assert readings(cell)["accuracy, cold"] == 1
    assert readings(cell)["accuracy, hit"] == 0
    assert (cell.examples[0].cold, cell.examples[0].other) == ("Paris", "Dhaka")


def test_fewer_are_not_significant(group: Any) -> None:
    cell = judged([group(n, hit=WRONG) for n in range(9)])
    assert cell.state == INCONCLUSIVE
    one = judged([group(0, hit=WRONG), *(group(n) for n in range(1, 12))])
    assert (one.state, one.corrupt) == (INCONCLUSIVE, 1)


def test_what_a_second_cold_send_changes_too_is_the_floor(group: Any) -> None:
    cell = judged([group(n, hit=WRONG, again=WRONG) for n in range(12)])
    assert cell.state == PASS
    assert readings(cell)["share changed, second cold send"] == 1
    mixed = [group(n, hit=WRONG) for n in range(2)] + [group(n, again=WRONG) for n in range(2, 12)]
    assert judged(mixed).state == PASS


def test_nothing_changed_passes_only_with_enough_answers(group: Any) -> None:
    cell = judged([group(n) for n in range(12)])
    assert cell.state == PASS
    assert "at most 22.1% at 95%" in cell.reason
    assert judged([group(n) for n in range(4)]).state == INCONCLUSIVE


def test_a_near_tie_is_no_change(group: Any) -> None:
    rows = [[(5, -0.01), (6, -5.0)], [(6, -0.6), (7, -0.9)]]
    cold = {"output_ids": [5, 6], "top": rows, "logprobs": [-0.01, -0.6]}
    tied = {"output_ids": [5, 7], "top": [rows[0], [(7, -0.6), (6, -0.9)]], "logprobs": [-0.01, -0.6]}
    cell = judged([group(n, hit=tied, cold=cold, again=cold) for n in range(12)])
    assert cell.state == PASS
    assert readings(cell)["share other than cold, near-ties included, hit"] == 1


def test_one_nan_in_a_hit_fails_even_where_cold_has_it(group: Any) -> None:
    nan = {**RIGHT, "faces": {"null": 1}}
    cell = judged([group(0, hit=nan), *(group(n) for n in range(1, 12))])
    assert (cell.state, cell.rules) == (FAIL, {"NaN": 1})
    assert judged([group(0, hit=nan, cold=nan)]).state == FAIL


def test_a_broken_cold_answer_leaves_nothing_to_hold_against(group: Any) -> None:
    nan = {**RIGHT, "faces": {"null": 1}}
    cell = judged([group(n, cold=nan) for n in range(12)])
    assert cell.state == NOT_EXERCISED
    assert cell.reason == "the cold answer is itself broken: NaN: 1 null"


def test_a_hit_that_was_not_proved_does_not_count(group: Any) -> None:
    miss = {**WRONG, "cached_tokens": 0}
    cell = judged([group(n, hit=miss) for n in range(12)])
    assert (cell.state, cell.exercised) == (NOT_EXERCISED, 0)
    assert cell.reason == "no hit: cached_tokens 0 instead of 192"
    some = judged([group(0, hit=miss), *(group(n) for n in range(1, 12))])
    assert some.state == INCONCLUSIVE
    assert some.reason.startswith("1 of 12 hits prove nothing")


def test_a_guard_that_retreats_is_held_to_its_own_prediction(group: Any) -> None:
    retreat = {**RIGHT, "cached_tokens": 128, "expected_cached": 128}
    groups = [group(n, hit=retreat) for n in range(12)]
    assert judged(groups, min_tail=2).state == PASS
    assert judged(groups).state == NOT_EXERCISED


def test_unsure_prompts_are_passed_over(group: Any) -> None:
    unsure = {**RIGHT, "top": [[(5, -1.0), (6, -1.1)]], "logprobs": [-1.0]}
    cell = judged([group(n, hit=WRONG, cold=unsure) for n in range(12)])
    assert (cell.state, cell.prompts) == (NOT_EXERCISED, 0)
    assert cell.missed == {"the model is unsure of its cold answer": 12}


def test_without_logprobs_the_text_is_still_judged(group: Any) -> None:
    bare = {"top": [], "logprobs": [], "values": 0}
    cell = judged([group(n, hit={**WRONG, **bare}, cold={**RIGHT, **bare}) for n in range(10)])
    assert cell.state == FAIL


def test_parse_failures_are_counted(group: Any) -> None:
    right = {"output_ids": [5], "text": '{"city": "Paris"}'}
    groups = [group(n, hit=WRONG, cold=right, again=right, cell="json") for n in range(10)]
    found = readings(judged(groups, "json"))
    assert (found["parse failures, cold"], found["parse failures, hit"]) == (0, 10)


def test_the_letters_may_change_where_the_token_does_not(group: Any) -> None:
    told = {**RIGHT, "asked": [[(1, -0.1), (2, -4.0)]]}
    other = {**RIGHT, "asked": [[(1, -4.0), (2, -0.1)]]}
    groups = [group(n, hit=other, cold=told, again=told, cell="multiple choice") for n in range(10)]
    cell = judged(groups, "multiple choice")
    assert cell.state == FAIL
    assert readings(cell)["rankings of the letters changed, hit"] == 10
    assert readings(cell)["margin of the first letter, cold, median"] == pytest.approx(3.9)


def test_a_tool_call_that_is_lost_is_harm(group: Any) -> None:
    groups = [group(n, hit=SAID, cold=CALLED, again=CALLED, cell="tool call") for n in range(10)]
    cell = judged(groups, "tool call")
    assert cell.state == FAIL
    assert readings(cell)["parse failures, hit"] == 10
    assert (cell.examples[0].cold, cell.examples[0].other) == ('f({"a": 1})', "Hg")


def test_a_model_that_never_calls_is_not_measured(group: Any) -> None:
    groups = [group(n, hit=SAID, cold=SAID, again=SAID, cell="tool call") for n in range(10)]
    cell = judged(groups, "tool call")
    assert (cell.state, cell.reason) == (NOT_APPLICABLE, "none of 10 cold answers calls the tool")
    odd = [group(0, cold={**CALLED, "prompt_tokens": 150}, cell="tool call")]
    assert "reads 150 tokens" in judged(odd, "tool call").reason


def test_a_skipped_pattern_says_why() -> None:
    cell = judged([], "json", json="no prompts of that kind")
    assert (cell.state, cell.reason) == (NOT_APPLICABLE, "no prompts of that kind")


def test_where_a_long_answer_goes_on_otherwise(group: Any) -> None:
    def long(ids: list[int]) -> dict[str, Any]:
        rows = [[(one, -0.1), (50, -5.0)] for one in ids]
        return {"output_ids": ids, "top": rows, "logprobs": [-0.1] * len(ids)}

    cold = long([1, 2, 3, 4, 5, 6, 7, 8])
    hits = [long([9, 2, 3, 4, 5, 6, 7, 8]), long([9, 8, 7, 6, 5, 4, 3, 2])]
    groups = [
        group(n, hit=hits[n % 2], cold=cold, again=cold, cell="long answer", max_new_tokens=8)
        for n in range(10)
    ]
    found = readings(judged(groups, "long answer"))
    assert found["same token as cold at position 1, hit"] == 0
    assert found["same token as cold at position 8, hit"] == 0.5
    assert found["same token as cold at position 8, second cold send"] == 1
    assert found["changed answers whose second half is as cold again"] == 0.5
    assert "accuracy, cold" not in found
