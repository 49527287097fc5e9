from __future__ import annotations

import numpy as np
import pytest

from fidelity.stats.topk import ABSENT, TopK, columns, defects, merge, odd_logprobs, stack

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ids", "logprobs", "problems"),
    [
        ([1, 2], [-0.1, -3.0], ()),
        ([2, 1], [-3.0, -0.1], ()),  # unsorted is no problem
        ([1, 2], [0.0, -INF], ()),  # certainty, and probability zero
        ([1], [9e-4], ()),  # above 0 by rounding
        ([], [], ("empty",)),
        ([ABSENT], [-0.1], ("empty",)),
        ([1, 2, 3], [-0.1, -3.0], ("mismatched lengths",)),
        ([1, 1], [-1.0, -2.0], ("duplicate ids",)),
        ([3, 1, 3], [-1.0, -2.0, -3.0], ("duplicate ids",)),
        ([1], [2e-3], ("logprob above 0", "mass above 1")),
        ([1, 2], [-0.1, -0.1], ("mass above 1",)),
        ([1, 2], [None, None], ("undefined logprob",)),
        ([1, 2], [-0.1, None], ("undefined logprob",)),
        ([1, 2], [-0.1, NAN], ("undefined logprob",)),
        ([1], [INF], ("mass above 1", "undefined logprob")),
        ([1, 2], [-0.1, -9999.0], ("undefined logprob",)),
        ([1, 2], [-0.1, -3.4028235e38], ("undefined logprob",)),
        ([1, 2], [-0.1, 3.4028235e38], ("mass above 1", "undefined logprob")),
        ([2**31], [-0.1], ("impossible id",)),
        ([-5], [-0.1], ("impossible id",)),
    ],
)
def test_problems_of_one_answer(
    ids: list[int], logprobs: list[float | None], problems: tuple[str, ...]
) -> None:
    assert TopK.of(ids, logprobs).problems() == problems


def test_absent_places_are_never_read() -> None:
    answer = stack([TopK.of([4, 9], [-0.2, -2.0]), TopK.of([4], [-0.2])])
    assert answer.ids.tolist() == [[4, 9], [4, ABSENT]]
    answer.logprobs[1, 1] = NAN
    assert not any(rows.any() for rows in defects(columns(answer)).values())
    assert [c.tolist() for c in odd_logprobs(columns(answer))] == [[0, 0], [0, 0]]


def test_stack_keeps_a_bad_answer_bad() -> None:
    answer = stack([None, TopK.of([1, 2], [-0.5]), TopK.of([1], [-0.5])])
    found = defects(columns(answer))
    assert found["empty"].tolist() == [True, False, False]
    assert found["impossible id"].tolist() == [False, True, False]
    assert stack([]).ids.shape[0] == 0


def test_undefined_and_zero_are_counted_apart() -> None:
    answer = TopK.of([1, 2, 3, 4, 5], [None, -INF, -9999.0, INF, -1.0])
    undefined, zero = odd_logprobs(columns(stack([answer])))
    assert (undefined[0], zero[0]) == (3, 1)


def test_is_sorted() -> None:
    assert TopK.of([1, 2, 3], [-0.1, -2.0, -2.0]).is_sorted()
    assert not TopK.of([1, 2], [-2.0, -0.1]).is_sorted()
    assert not TopK.of([1, 2], [-0.1, None]).is_sorted()


def test_merge_counts_an_id_once() -> None:
    own = stack([TopK.of([1, 2], [-0.5, -1.5])])
    asked = stack([TopK.of([2, 8], [-1.5, -6.0])])
    merged = merge(own, asked)
    told = {i: v for i, v in zip(merged.ids[0], merged.logprobs[0], strict=True) if i != ABSENT}
    assert told == {1: -0.5, 2: -1.5, 8: -6.0}


@pytest.mark.parametrize("second", [None, -1.6, -INF])
def test_an_answer_that_contradicts_itself_becomes_undefined(second: float | None) -> None:
    own, asked = stack([TopK.of([1, 2], [-0.5, -1.5])]), stack([TopK.of([2], [second])])
    assert defects(columns(merge(own, asked)))["undefined logprob"].tolist() == [True]


def test_zero_told_twice_is_no_contradiction() -> None:
    own, asked = stack([TopK.of([1, 2], [0.0, -INF])]), stack([TopK.of([2], [-INF])])
    assert not np.isnan(merge(own, asked).logprobs).any()
