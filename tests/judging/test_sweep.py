"""The map of a sweep and the state of its rows, on records made by hand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging import sweep
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict

PLAN = plans.build({"probes": ["sweep"]})
ROW = [(5, -0.1), (6, -3.2), (7, -4.0), (8, -5.0), (9, -6.0)]
FLIPPED = {
    "output_ids": [6],
    "logprobs": [-0.1],
    "top": [[(6, -0.1), (5, -3.2), (7, -4.0), (8, -5.0), (9, -6.0)]],
}
ELSEWHERE = {"output_ids": [99], "logprobs": [-0.1], "top": [[(99, -0.1), (5, -3.2)]]}
NAN: dict[str, Any] = {"output_ids": [0], "logprobs": [math.nan], "top": [], "faces": {"null": 41}}

Sends = Callable[..., list[Observation]]


@pytest.fixture
def sends(observation: Callable[..., Observation]) -> Sends:
    """One cell's cold send and hit, and a second cold send where `again` is given."""

    def make(
        tail: int,
        hit: dict[str, Any] | None = None,
        cold: dict[str, Any] | None = None,
        again: dict[str, Any] | None = None,
        position: int = 192,
        **own: Any,
    ) -> list[Observation]:
        length = position + tail
        common = {"probe": "sweep", "length": length, "prompt_tokens": length, "tail": tail, "top": [ROW]}
        common |= {"logprobs": [-0.1], "group": f"a/b@{length}-{tail}", "prompt": "a/b", **own}
        made = [observation(**{**common, "role": "cold", "cached_tokens": 0, **(cold or {})})]
        given = {"role": "hit", "cached_tokens": position, "expected_cached": position, **(hit or {})}
        made.append(observation(**{**common, **given}))
        if again is not None:
            made.append(observation(**{**common, "role": "cold2", "cached_tokens": 0, **again}))
        return made

    return make


def judge(
    observations: Sequence[Observation],
    planned: Sequence[tuple[int, int]] = (),
    plan: RunPlan = PLAN,
    min_tail: int = 1,
) -> dict[str, CellVerdict]:
    record = ArmRecord("none", min_tail, sweep=list(planned))
    found = sweep.judge(plan, plan.arms[0], record, observations, plan.thresholds)
    return {cell.name: cell for cell in found}


def test_a_clean_row_passes_with_the_bound_of_its_sends(sends: Sends) -> None:
    row = judge([obs for tail in (1, 2, 3, 33, 64) for obs in sends(tail)])["from 192"]
    assert row.state == PASS
    assert row.reason == "0 corrupt of 5 hits: at most 45.1% at 95%"
    assert row.rate_upper == pytest.approx(1 - 0.05 ** (1 / 5))
    assert row.notes == ("from 192: 1-3 ...  33 .  64 .", "no corrupt tails; clean: 1 to 3, 33, 64")
    assert (row.exercised, row.sends, row.corrupt) == (5, 5, 0)


@pytest.mark.parametrize(
    ("hit", "why"), [(NAN, "NaN: 41 null"), (ELSEWHERE, "off-list"), (FLIPPED, "hard flip")]
)
def test_one_corrupt_send_fails_its_row_and_no_other(sends: Sends, hit: dict[str, Any], why: str) -> None:
    found = judge([*sends(1, hit), *sends(2), *sends(1, position=64), *sends(3, position=64)])
    row = found["from 192"]
    assert row.state == FAIL
    assert row.reason == f"corrupt at tail 1: {why}"
    assert row.notes == ("from 192: 1-2 X.", "corrupt tails: 1; clean: 2")
    assert (row.corrupt, row.exercised, len(row.examples)) == (1, 2, 1)
    assert found["from 64"].state == PASS
    assert list(found) == ["from 64", "from 192"]


@pytest.mark.parametrize(
    ("first", "second", "mark"), [(-0.7, -0.8, "~"), (-0.5, -1.35, "~"), (-0.4, -1.55, "X")]
)
def test_a_single_flip_needs_more_than_rounding(sends: Sends, first: float, second: float, mark: str) -> None:
    """Regrets of 0.1, 0.85 and 1.15 nats: rounding can flip near-tied tokens, and one send has no rate."""
    cold = {"top": [[(5, first), (6, second)]], "logprobs": [first]}
    hit = {"output_ids": [6], "top": [[(6, first), (5, second)]], "logprobs": [first]}
    row = judge(sends(1, hit, cold))["from 192"]
    assert row.notes[0] == f"from 192: 1 {mark}"
    assert row.state == (INCONCLUSIVE if mark == "X" else PASS)
    # One alone could be a noisy server's; two are not.
    twice = judge([*sends(1, hit, cold), *sends(2, hit, cold)])["from 192"]
    assert twice.state == (FAIL if mark == "X" else PASS)
    # Neither are two at one tail of two positions; at two tails, each could be noise.
    for tail, state in ((1, FAIL), (2, INCONCLUSIVE)):
        both = judge([*sends(1, hit, cold), *sends(tail, hit, cold, position=64)])
        assert {row.state for row in both.values()} == {state if mark == "X" else PASS}


def test_the_same_token_with_far_less_probability_is_corrupt(sends: Sends) -> None:
    """Stale numbers can leave the first token in place by chance."""
    for asked, moved in (([(5, -4.5)], "4.4"), ([], "")):
        hit = {"logprobs": [-4.5], "top": [[(5, -4.5), (8, -4.9), (9, -5.0), (6, -5.1), (7, -5.2)]]}
        row = judge([*sends(1, {**hit, "asked": [asked]}), *sends(2)])["from 192"]
        assert (row.state, row.notes[0]) == (FAIL, "from 192: 1-2 X.")
        assert f"logprob moved {moved}" in row.reason
    readings = {reading.name: reading.value for reading in row.readings}
    assert readings == pytest.approx(
        {
            "|delta logprob| at clean tails, largest": 0.0,
            "|delta logprob| at corrupt tails, least": 4.4,
            "smallest corrupt tail": 1,
            "largest corrupt tail": 1,
            "smallest clean tail": 2,
        }
    )
    near = {"logprobs": [-0.9], "top": [[(5, -0.9), (6, -1.2), (7, -1.9)]]}
    assert judge(sends(1, near))["from 192"].state == PASS


def test_a_corrupt_cold_answer_fails_though_the_hit_is_as_corrupt(sends: Sends) -> None:
    """Past the chunked-prefill size the cold send runs the same last step."""
    row = judge([*sends(1, NAN, NAN), *sends(2)])["from 192"]
    assert (row.state, row.notes[0]) == (FAIL, "from 192: 1-2 X.")
    assert "the cold answer is broken: NaN" in row.reason


def test_a_flip_that_cold_shows_too_is_no_corruption(sends: Sends) -> None:
    row = judge(sends(1, FLIPPED, again=FLIPPED))["from 192"]
    assert (row.state, row.corrupt) == (NOT_EXERCISED, 0)
    assert "the cold answer differs from itself as much" in row.reason
    assert judge(sends(1, FLIPPED, again={}))["from 192"].state == FAIL
    # A NaN is no noise, whatever the second cold send says.
    assert judge(sends(1, NAN, again=FLIPPED))["from 192"].state == FAIL
    assert judge(sends(1, FLIPPED, again=NAN))["from 192"].state == FAIL


@pytest.mark.parametrize(
    ("hit", "why"),
    [
        ({"cached_tokens": 0}, "no hit: cached_tokens 0 instead of 192"),
        ({"cached_tokens": None}, "reports no cached_tokens"),
        ({"error": "HTTP 429"}, "the request failed"),
        ({"alone": False}, "other requests ran"),
        ({"output_ids": []}, "no readable answer"),
    ],
)
def test_a_cell_that_did_not_take_its_path_is_no_pass(sends: Sends, hit: dict[str, Any], why: str) -> None:
    row = judge([*sends(1), *sends(2, hit), *sends(3, hit), *sends(33)])["from 192"]
    assert row.state == NOT_EXERCISED
    assert row.reason.startswith("the path was not taken at tails 2, 3: ")
    assert why in row.reason
    assert row.notes == ("from 192: 1-3 .??  33 .", "no corrupt tails; path not taken: 2, 3; clean: 1, 33")
    assert (row.exercised, row.prompts) == (2, 4)


def test_a_planned_cell_that_was_never_sent_is_no_pass(sends: Sends) -> None:
    row = judge(sends(1), planned=[(192, 1), (192, 5)])["from 192"]
    assert (row.state, row.notes[0]) == (NOT_EXERCISED, "from 192: 1 .  5 ?")
    assert "nothing was measured" in row.reason
    assert judge([])["map"].state == NOT_EXERCISED


def test_every_prompt_of_a_cell_is_asked_for_and_the_worst_is_shown(sends: Sends) -> None:
    two = plans.build({"probes": ["sweep"], "sweep": {"prompts": 2}})
    assert judge(sends(1), plan=two)["from 192"].notes[0] == "from 192: 1 ?"
    both = [*sends(1), *sends(1, NAN, prompt="c/d", group="c/d@193-1")]
    row = judge(both, plan=two)["from 192"]
    assert (row.notes[0], row.corrupt, row.exercised) == ("from 192: 1 X", 1, 2)


def test_a_retried_cell_counts_once_and_what_was_corrupt_stays(sends: Sends) -> None:
    failed = {"error": "HTTP 429", "status": 429}
    first, second = sends(1, failed), [replace(obs, attempt=1) for obs in sends(1)]
    assert judge([*first, *second])["from 192"].state == PASS
    corrupt = [replace(obs, attempt=0) for obs in sends(1, NAN)]
    assert judge([*corrupt, *second])["from 192"].state == FAIL
    crashed = sends(1, {"error": "HTTP 500", "status": 500})
    assert "the server failed a request" in judge([*crashed, *second])["from 192"].reason


def test_a_guard_that_leaves_no_short_tail(sends: Sends) -> None:
    full = {"cached_tokens": 0, "expected_cached": 0}
    row = judge([*sends(1, full), *sends(2)], min_tail=2)["from 192"]
    assert row.state == PASS
    assert row.notes == ("from 192: 1-2 -.", "no corrupt tails; not left by the guard: 1; clean: 2")
    row = judge([*sends(1, {"expected_cached": 0}), *sends(2)], min_tail=2)["from 192"]
    assert (row.state, row.notes[0]) == (FAIL, "from 192: 1-2 X.")
    assert "the guard leaves no tail under 2, yet 1 was recomputed" in row.reason
    row = judge([*sends(1, {**full, **NAN}), *sends(2)], min_tail=2)["from 192"]
    assert (row.state, row.notes[0]) == (FAIL, "from 192: 1-2 X.")


def test_on_a_server_that_others_may_use_a_pass_needs_its_word(sends: Sends) -> None:
    attached: dict[str, Any] = {"probes": ["sweep"], "target": {"kind": "attach", "url": "http://s"}}
    plan = plans.build(attached)
    assert judge(sends(1), plan=plan)["from 192"].state == INCONCLUSIVE
    assert judge(sends(1, {"alone": True, "computed": 1}), plan=plan)["from 192"].state == PASS
    idle = plans.build(plans.merge(attached, {"target": {"assume_idle": True}}))
    assert judge(sends(1), plan=idle)["from 192"].state == PASS
