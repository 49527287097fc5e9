"""Shifts without a flipped token: what few prompts can show."""

import math
from collections.abc import Callable, Sequence

import pytest

from fidelity.compare import SAME
from fidelity.judging.moved import against_controls
from fidelity.judging.rows import Judged
from fidelity.observations import Observation
from fidelity.plan import Thresholds

Rows = Callable[..., list[Judged]]


@pytest.fixture
def rows(observation: Callable[..., Observation]) -> Rows:
    """One judged row a prompt, with these moves (nats) and no divergence."""

    def make(moves: Sequence[float], missed: str | None = None, rules: tuple[str, ...] = ()) -> list[Judged]:
        return [
            Judged(observation(prompt=f"p{n}"), None, SAME, rules, missed, 0.0, move, "log")
            for n, move in enumerate(moves)
        ]

    return make


def states(suspects: Sequence[Judged], controls: Sequence[Judged]) -> list[str | None]:
    """Of the JSD, and of the mean |delta logprob|."""
    return [found.state for found in against_controls(suspects, controls, "controls", Thresholds(), 0)]


@pytest.mark.parametrize(
    ("suspect", "control", "state"),
    [
        ([0.01] * 8, [0.01] * 8, None),
        ([0.30] * 8, [0.20] * 8, None),
        ([0.50] * 8, [0.10] * 8, "fail"),
        ([0.50] * 3, [0.10] * 3, "inconclusive"),  # p is 1/8 at least
        ([0.50] * 5 + [0.0] * 3, [0.05] * 5 + [0.4] * 3, "inconclusive"),  # the median is, the sum is not
        ([0.05] * 6 + [3.0] * 2, [0.05] * 8, "inconclusive"),
        ([math.nan] * 8, [0.10] * 8, "inconclusive"),
    ],
)
def test_a_shift_fails_by_its_median_and_its_p(
    rows: Rows, suspect: list[float], control: list[float], state: str | None
) -> None:
    assert states(rows(suspect), rows(control)) == [None, state]


def test_rows_that_prove_nothing_or_are_corrupt_are_held_against_nothing(rows: Rows) -> None:
    assert states(rows([0.5] * 8), rows([0.1] * 8, missed="no hit")) == []
    assert states(rows([0.5] * 8), rows([0.1] * 8, rules=("NaN",))) == []


def test_only_prompts_of_both_are_held_against_each_other(rows: Rows) -> None:
    (_, found) = against_controls(rows([0.01] * 8), rows([0.01] * 5), "controls", Thresholds(), 0)
    assert "(5 prompts)" in found.figure.name
