"""Do corrupt hits come late? On records made by hand."""

from collections.abc import Callable, Sequence

import pytest

from fidelity.diagnosis.order import order_of_corruption
from fidelity.observations import Observation

ROW = [(5, -0.1), (6, -3.2), (7, -4.0), (8, -5.0), (9, -6.0)]
OTHER = [(9, -0.1), (6, -3.2), (7, -4.0), (8, -5.0), (5, -6.0)]

Hits = Callable[..., list[Observation]]


@pytest.fixture
def hits(observation: Callable[..., Observation]) -> Hits:
    def make(
        corrupt: Sequence[bool], tail: int = 1, first: int = 0, probe: str = "resend"
    ) -> list[Observation]:
        made = []
        for number, bad in enumerate(corrupt):
            length = 192 + tail
            common = {"probe": probe, "length": length, "prompt_tokens": length, "logprobs": [-0.1]}
            common |= {"group": f"a/{first + number}", "prompt": f"a/{first + number}", "output_ids": [5]}
            order = first + 2 * number
            made.append(observation(**common, role="cold", cached_tokens=0, top=[ROW], order=order))
            answer = {"output_ids": [9], "top": [OTHER]} if bad else {"top": [ROW]}
            made.append(
                observation(**{**common, "role": "hit", "cached_tokens": 192, "order": order + 1, **answer})
            )
        return made

    return make


def test_all_corrupt_hits_after_all_clean_ones(hits: Hits) -> None:
    found = order_of_corruption(hits([False] * 6 + [True] * 6), 0.125)
    assert found is not None
    assert (found.pairs, found.later) == (36, 1.0)
    # U = 36 of 36, z = 18 / sqrt(36 * 13 / 12) = 2.882
    assert found.p == pytest.approx(0.00197, rel=0.01)


def test_corrupt_hits_all_along_are_not_late(hits: Hits) -> None:
    found = order_of_corruption(hits([True, False] * 6), 0.125)
    assert found is not None
    assert found.p > 0.3
    first = order_of_corruption(hits([True] * 4 + [False] * 4), 0.125)
    assert first is not None
    assert first.p > 0.98


def test_one_condition_later_than_another_proves_nothing(hits: Hits) -> None:
    records = [*hits([False] * 6, tail=33), *hits([True] * 6, tail=1, first=100)]
    assert order_of_corruption(records, 0.125) is None


def test_conditions_are_summed(hits: Hits) -> None:
    records = [*hits([False, False, True]), *hits([False, True, True], tail=2, first=50)]
    found = order_of_corruption(records, 0.125)
    assert found is not None
    assert (found.pairs, found.later) == (4, 1.0)


def test_the_checkpoint_probe_is_left_out(hits: Hits) -> None:
    assert order_of_corruption(hits([False, True], probe="checkpoint"), 0.125) is None


def test_a_row_alone_is_the_same_hit_by_its_first_token(hits: Hits) -> None:
    later = hits([True, True], first=50, probe="batch")
    for row in later:
        row.cell, row.role = "M=1", "row" if row.role == "hit" else row.role
        if row.role == "row":
            row.answer.output_ids, row.answer.logprobs = [9, 7], [-0.1, -0.1]
            row.answer.top = [OTHER, ROW]
    found = order_of_corruption([*hits([False, False]), *later], 0.125)
    assert found is not None
    assert (found.pairs, found.later) == (4, 1.0)
    for row in later:
        if row.role == "row":
            row.answer.output_ids, row.answer.top = [5, 7], [ROW, ROW]
    # Only its second token is wrong: that is no hit gone wrong.
    assert order_of_corruption([*hits([False, False]), *later], 0.125) is None
