"""Where one send alone is corrupt: by more than rounding explains."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from fidelity.observations import Answer, Observation
from fidelity.single_send import alone_is_no_proof, corrupt_reason, token_move

COLD = {"top": [[(5, -0.1), (6, -3.0)]], "output_ids": [5], "logprobs": [-0.1]}


@pytest.fixture
def answer(observation: Callable[..., Observation]) -> Callable[..., Answer]:
    return lambda **given: observation(**{**COLD, **given}).answer


def test_the_move_is_of_the_cold_token_wherever_the_other_lists_it(answer: Any) -> None:
    cold = answer()
    assert token_move(cold, answer(top=[[(5, -0.3), (6, -2.0)]])) == pytest.approx(0.2)
    assert token_move(cold, answer(top=[[(7, -0.1)]], asked=[[(5, -9.1)]])) == pytest.approx(9.0)
    # Not listed: it lies below the last one that is.
    assert token_move(cold, answer(top=[[(7, -0.5), (8, -2.6)]])) == pytest.approx(2.5)
    assert token_move(cold, answer(top=[[(7, -0.01), (8, -0.02)]])) == 0.0


@pytest.mark.parametrize("bad", [{"top": []}, {"mismatched": True}, {"output_ids": []}])
def test_what_cannot_be_read_has_no_move(answer: Any, bad: dict[str, Any]) -> None:
    assert math.isnan(token_move(answer(**bad), answer()))
    if "output_ids" not in bad:
        assert math.isnan(token_move(answer(), answer(**bad)))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({}, ""),
        ({"top": [[(5, -1.0), (6, -1.05)]], "logprobs": [-1.0]}, ""),
        ({"top": [[(5, -1.2), (6, -1.25)]], "logprobs": [-1.2]}, "logprob moved 1.1 nat"),
        ({"top": [[(6, -0.1), (5, -3.0)]], "output_ids": [6]}, "hard flip"),
        ({"top": [[(9, -0.1), (5, -3.0)]], "output_ids": [9]}, "off-list"),
        ({"faces": {"null": 3}}, "NaN: 3 null"),
    ],
)
def test_the_worst_reason_is_told(answer: Any, other: dict[str, Any], reason: str) -> None:
    assert corrupt_reason(answer(), answer(**other), 0.125) == reason


@pytest.mark.parametrize(
    ("other", "noise"),
    [
        ({"top": [[(5, -3.0), (6, -3.1)]], "logprobs": [-3.0]}, True),
        ({"top": [[(5, -3.2), (6, -3.3)]], "logprobs": [-3.2]}, False),
        ({"top": [[(6, -0.1), (5, -3.0)]], "output_ids": [6]}, True),
        ({"top": [[(9, -0.1), (5, -3.0)]], "output_ids": [9]}, False),
        ({"faces": {"null": 3}}, False),
        ({"top": []}, False),
    ],
)
def test_finite_moves_up_to_three_nats_are_no_proof_alone(
    answer: Any, other: dict[str, Any], noise: bool
) -> None:
    assert alone_is_no_proof(answer(), answer(**other), 0.125) is noise
