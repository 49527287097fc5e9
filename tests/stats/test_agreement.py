from __future__ import annotations

import math

import numpy as np
import pytest

from fidelity.stats.agreement import TIE, classify, counts, regrets, tie_threshold
from fidelity.stats.topk import TopK, stack

NAN = float("nan")
COLD = TopK.of([3, 7, 5, 9], [-2.0, -0.4, -2.5, -5.0])  # unsorted: 7 is first


def test_regret_and_class_of_each_kind() -> None:
    reference = stack([COLD, COLD, COLD, COLD, TopK.of([1, 2], [None, -3.0]), COLD, TopK.of([], [])])
    found = regrets(reference, np.array([7, 3, 9, 1234, 1, -1, 7]))
    assert found.d == pytest.approx([0.0, 1.6, 4.6, 4.6, NAN, NAN, NAN], nan_ok=True)
    assert found.same.tolist() == [True, False, False, False, False, False, False]
    assert found.off_list.tolist() == [False, False, False, True, False, False, False]
    classes = classify(found, tau=1.7)
    undefined = ["undefined"] * 3
    assert classes == ["same", "near-tie", "hard flip", "off-list", *undefined]
    assert counts(classes) == {"same": 1, "near-tie": 1, "hard flip": 1, "off-list": 1, "undefined": 3}
    assert classify(found, tau=1.5)[1] == "hard flip"


def test_the_threshold_itself_is_still_a_near_tie() -> None:
    found = regrets(
        stack([TopK.of([1, 2], [-0.75, -0.875]), TopK.of([1, 2], [-0.75, -0.876])]), np.array([2, 2])
    )
    assert classify(found, TIE) == ["near-tie", "hard flip"]


def test_an_exact_tie_is_a_near_tie_not_a_hard_flip() -> None:
    found = regrets(stack([TopK.of([1, 2], [-0.7, -0.7])]), np.array([2]))
    assert (found.d[0], classify(found, TIE)) == (0.0, ["near-tie"])


def test_asked_ids_resolve_what_the_list_leaves_out() -> None:
    asked = stack([TopK.of([50], [-7.4])])
    found = regrets(stack([COLD]), np.array([50]), asked)
    assert found.d[0] == pytest.approx(7.0)
    assert not found.off_list[0]
    still = regrets(stack([COLD]), np.array([51]), asked)
    assert still.off_list[0]
    assert still.d[0] == pytest.approx(4.6)  # the k-th of its own top k, not of what was asked


def test_an_off_list_token_never_passes_as_near_tie() -> None:
    found = regrets(stack([TopK.of([1, 2], [-0.7, -0.71])]), np.array([3]))
    assert found.d[0] < TIE
    assert classify(found, TIE) == ["off-list"]


def test_a_shorter_list_is_bounded_by_its_own_last_entry() -> None:
    found = regrets(stack([COLD, TopK.of([1, 2], [-0.5, -1.5])]), np.array([7, 99]))
    assert found.d == pytest.approx([0.0, 1.0])


def test_a_token_of_probability_zero_has_infinite_regret() -> None:
    found = regrets(stack([TopK.of([1, 2], [0.0, -math.inf])]), np.array([2]))
    assert found.d[0] == math.inf
    assert classify(found, TIE) == ["hard flip"]


def test_nothing_passes_against_an_undefined_threshold() -> None:
    found = regrets(stack([COLD]), np.array([3]))
    assert classify(found, NAN) == ["hard flip"]


@pytest.mark.parametrize(
    ("floor", "tau"),
    [
        ([], 0.125),
        ([0.0] * 100, 0.125),
        ([0.0] * 98 + [0.9, 0.9], 0.9),
        ([0.0] * 199 + [0.9], 0.125),  # p99 is not the largest
        ([0.0] * 50 + [NAN], 0.125),
        ([0.0, math.inf], 0.125),
    ],
)
def test_tie_threshold(floor: list[float], tau: float) -> None:
    assert tie_threshold(np.array(floor)) == tau


def test_mismatched_numbers_of_rows_raise() -> None:
    with pytest.raises(ValueError, match="2 chosen tokens for 1"):
        regrets(stack([COLD]), np.array([1, 2]))
