"""When two answers are the same to the user."""

from typing import Any

import pytest

from fidelity.judging import changes
from fidelity.judging.changes import CHANGED, NEAR_TIE, SAME, difference
from fidelity.observations import Answer

ROWS = [[(5, -0.1), (6, -0.2), (10, -0.6), (7, -4.0)], [(8, -0.1), (9, -1.0), (7, -4.0)]]


def answer(ids: list[int], **given: Any) -> Answer:
    return Answer(status=200, latency=0.1, **{"output_ids": ids, "top": ROWS[: len(ids)], **given})


def call(arguments: str, name: str = "give_city") -> list[dict[str, str]]:
    return [{"name": name, "arguments": arguments}]


@pytest.mark.parametrize(
    ("cold", "other", "kind"),
    [
        ([5, 8], [5, 8], SAME),
        ([5, 8], [6, 8], NEAR_TIE),  # 0.1 nat at the first token
        ([5, 8], [10, 8], CHANGED),  # 0.5 nat there
        ([5, 8], [7, 8], CHANGED),
        ([5, 8], [5, 9], NEAR_TIE),  # 0.9 nat at a later one
        ([5, 8], [5, 7], CHANGED),
        ([5, 8], [4, 8], CHANGED),  # off the list
        ([5, 8], [5], CHANGED),
        ([5], [5, 8], CHANGED),
    ],
)
def test_the_first_token_that_differs_decides(cold: list[int], other: list[int], kind: str) -> None:
    assert difference(answer(cold), answer(other), 0.125) == kind


def test_without_logprobs_every_difference_is_a_change() -> None:
    assert difference(answer([5], top=[]), answer([6]), 0.125) == CHANGED
    assert difference(answer([5], mismatched=True), answer([6]), 0.125) == CHANGED
    assert difference(answer([5], top=[]), answer([5]), 0.125) == SAME


def test_a_chat_is_held_by_its_tool_calls_else_its_text() -> None:
    cold = answer([], tool_calls=call('{"city": "Paris", "a": 1}'))
    assert difference(cold, answer([], tool_calls=call('{"a":1,"city":"Paris"}')), 0.1) == SAME
    assert difference(cold, answer([], tool_calls=call('{"city": "Rome", "a": 1}')), 0.1) == CHANGED
    assert difference(cold, answer([], tool_calls=call('{"city": "Paris", "a": 1}', "other")), 0.1) == CHANGED
    assert difference(cold, answer([], text="Paris"), 0.1) == CHANGED
    assert difference(answer([], text="a"), answer([], text="a"), 0.1) == SAME
    assert difference(answer([], text="a"), answer([], text="b"), 0.1) == CHANGED


def test_what_parses() -> None:
    assert changes.parses(answer([], text=' {"city": "Paris"}\n'), calls=False)
    for text in ("", "5", '"Paris"', '{"city": "Paris"', "```json\n{}\n```"):
        assert not changes.parses(answer([], text=text), calls=False)
    assert changes.parses(answer([], tool_calls=call("{}")), calls=True)
    assert not changes.parses(answer([], text="{}"), calls=True)
    assert not changes.parses(answer([], tool_calls=[*call("{}"), *call("{")]), calls=True)
    assert not changes.parses(answer([], tool_calls=call("[]")), calls=True)


def test_what_begins_right() -> None:
    assert changes.right(answer([], text=" an"), "animal")
    assert changes.right(answer([], text="animal, I think"), "animal")
    assert changes.right(answer([], text="", tool_calls=call('{"city": "Paris"}')), '{"city": "Paris"}')
    assert not changes.right(answer([], text=""), "animal")
    assert not changes.right(answer([], text="tool"), "animal")


def test_the_ranking_of_the_letters() -> None:
    told = answer([5], asked=[[(1, -3.0), (2, -0.5), (3, -1.0)]])
    assert [token for token, _ in changes.ranking(told)] == [2, 3, 1]
    assert changes.margin(told) == pytest.approx(0.5)
    assert changes.ranking(answer([5], asked=[[(1, float("nan")), (2, -1.0)]])) == []
    assert changes.margin(answer([5])) is None


def test_an_answer_that_ends_as_cold_is_re_anchored() -> None:
    assert changes.re_anchored([1, 2, 3, 4], [9, 2, 3, 4])
    assert not changes.re_anchored([1, 2, 3, 4], [9, 8, 3, 5])
    assert not changes.re_anchored([1], [9])


def test_a_run_that_the_cold_answer_has_too_is_the_models_own() -> None:
    run = answer([5] * 9, top=[], logprobs=[-0.1] * 9)
    assert changes.hit_rules(run, run, 0.125) == ()
    assert changes.hit_rules(answer([5]), run, 0.125) == ("run of one id (9)",)
    nan = answer([0], faces={"null": 1})
    assert changes.hit_rules(nan, nan, 0.125) == ("NaN: 1 null",)
