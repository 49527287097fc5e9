"""Sends held against their cold ones, and what counts as a near-tie on one server."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.comparison import (
    TIE_CAP,
    TIE_PAIRS,
    Sends,
    Tie,
    compare_floor,
    compare_hits,
    tie_threshold,
    with_near_tie,
)
from fidelity.evidence import Group
from fidelity.probes.cells import Cell

CELL = Cell("L=193 tail=1", "suspect", 193, 1, "why")
NAN = {"logprobs": [math.nan], "faces": {"null": 6}, "top": [[(0, math.nan)]]}

Made = Callable[..., Sends]


@pytest.fixture(scope="session")
def hits(observation: Any) -> Made:
    """One hit for each of the given regrets: a flip to a token so much less likely when cold, none at 0."""

    def make(*regrets: float, **change: Any) -> Sends:
        groups = []
        for number, regret in enumerate(regrets):
            row = [(5, -0.7), (6, -0.7 - regret), (7, -9.0), (8, -9.5), (9, -10.0)]
            cold = observation(role="cold", cached_tokens=0, prompt=f"a/{number}", top=[row], logprobs=[-0.7])
            token = 6 if regret else 5
            hit = observation(prompt=f"a/{number}", output_ids=[token], **change)
            groups.append(Group(f"a/{number}", cold, None, [hit]))
        return compare_hits(CELL, groups, 0.125, 1)

    return make


def kinds(sends: Sends) -> list[str]:
    return [one.agreement.kind for one in sends.judged]


def test_each_hit_is_held_against_its_own_cold_send(hits: Made) -> None:
    sends = hits(0.0, 0.1, 0.5)
    assert kinds(sends) == ["same", "near-tie", "hard flip"]
    assert [one.missed for one in sends.judged] == [None] * 3
    assert len(sends.found.jsd_lower) == 3
    assert np.isfinite(sends.found.jsd_lower).all()


def test_a_row_that_is_missing_or_shorter_has_its_own_figures(hits: Made, observation: Any) -> None:
    groups = [*hits(0.0, 0.0, 0.0).groups]
    groups[0].hits = [observation(top=[])]
    groups[1].hits = [observation(top=[[(5, -0.7)]])]
    found = compare_hits(CELL, groups, 0.125, 1).found
    assert np.isnan(found.jsd_lower).tolist() == [True, False, False]
    assert found.shared.tolist() == [0, 1, 5]
    alone = compare_hits(CELL, groups[1:2], 0.125, 1).found
    assert alone.jsd_lower[0] == found.jsd_lower[1]


def test_no_sends_at_all() -> None:
    for sends in (compare_hits(CELL, [], 0.125, 1), compare_floor([], 0.125)):
        assert len(sends.judged) == len(sends.found.jsd_lower) == 0
        assert sends.counted.tolist() == []


def test_out_of_order_answers_are_counted(hits: Made, observation: Any) -> None:
    reverse = [[(7, -5.0), (6, -3.0), (5, -0.1)]]
    assert hits(0.0, 0.0, top=reverse).unsorted == 2
    assert hits(0.0).unsorted == 0
    cold = observation(role="cold", cached_tokens=0, top=reverse)
    assert compare_floor([Group("a", cold, observation(role="cold2", cached_tokens=0))], 0.125).unsorted == 1


def test_a_ninety_ninth_percentile_above_the_plans_raises_the_tie(hits: Made) -> None:
    healthy = hits(*[0.0] * 97, 0.1, 0.3, 0.4)
    tie = tie_threshold([healthy], 0.125)
    assert tie.threshold == pytest.approx(0.4)  # of 100: the higher of the two around p99
    assert tie.source == "p99 of 100 cold and control pairs; thresholds.near_tie is 0.125"
    assert kinds(with_near_tie(healthy, tie.threshold)) == ["same"] * 97 + ["near-tie"] * 3
    assert kinds(with_near_tie(hits(0.5), tie.threshold)) == ["hard flip"]


@pytest.mark.parametrize(
    ("regrets", "near_tie", "threshold"),
    [
        ([0.0] * 300, 0.125, 0.125),
        ([0.0] * 298 + [0.9] * 2, 0.125, 0.125),  # rarer than 1 %
        ([0.0] * 290 + [0.9] * 10, 0.125, 0.9),
        ([0.0] * 290 + [0.3] * 10, 0.5, 0.5),  # the plan's is larger
        ([0.0] * 290 + [0.1] * 10, 0.05, 0.05),  # within a bf16 step nothing is learned
        ([0.9] * (TIE_PAIRS - 1), 0.125, 0.125),  # too few to have a 99th percentile
        ([0.0] * 150 + [3.0] * 150, 0.125, 0.125),  # a broken control excuses nobody
    ],
)
def test_the_near_tie_of_a_server(
    regrets: list[float], near_tie: float, threshold: float, hits: Made
) -> None:
    assert tie_threshold([hits(*regrets)], near_tie).threshold == pytest.approx(threshold)


@settings(deadline=None, max_examples=50)
@given(regrets=st.lists(st.floats(0, 20), min_size=100, max_size=150), near_tie=st.floats(0, 0.5))
def test_no_control_ever_excuses_a_flip_beyond_the_cap(
    regrets: list[float], near_tie: float, hits: Made
) -> None:
    tie = tie_threshold([hits(*regrets)], near_tie)
    assert near_tie <= tie.threshold <= max(TIE_CAP, near_tie) + 1e-12


def test_what_proves_nothing_sets_no_tie(hits: Made) -> None:
    for change in ({"cached_tokens": 0}, NAN, {"top": []}):
        assert tie_threshold([hits(*[0.9] * 200, **change)], 0.125) == Tie(0.125, "thresholds.near_tie")


def test_pairs_of_all_healthy_sends_are_taken_together(hits: Made) -> None:
    parts = [hits(*[0.0] * 60), hits(*[0.0] * 38, 0.3, 0.3)]
    assert tie_threshold(parts[1:], 0.125).threshold == 0.125
    assert tie_threshold(parts, 0.125).threshold == pytest.approx(0.3)
