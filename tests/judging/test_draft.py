"""The verdict of the draft probe on records made by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fidelity.engines.speculation import Acceptance, acceptance
from fidelity.judging.draft import compare, judge
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation
from fidelity.plan import Arm, RunPlan, Thresholds, build
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_APPLICABLE, NOT_EXERCISED, PASS, SHOWN, CellVerdict

RECORD = ArmRecord("none", 1)
PLAN = build({"probes": ["draft"], "arms": [{"name": "none"}, {"name": "splitk", "guard": "splitk"}]})
IDS = [3, 4, 5, 6]

Make = Callable[..., Observation]


def sends(
    make: Make,
    alone: float = 2.5,
    together: float | None = 2.5,
    formed: str = "log",
    rate: float = 0.5,
    count: int = 8,
    **decode: Any,
) -> Iterator[Observation]:
    """Eight prompts; acceptance varies a little from one to the next."""
    scored = {"output_ids": IDS, "logprobs": [-0.1] * 4, "top": [[(token, -0.1)] for token in IDS]}
    for number in range(count):
        group, wobble = f"p#{number}", 1 + 0.02 * (number % 3)
        spec = {"spec_accept_length": alone * wobble, "spec_accept_rate": rate, "spec_verify_ct": 30.0}
        own = {"probe": "draft", "cell": "alone", "prompt": "p", "group": group}
        yield make(role="decode", **{"spec": spec, **scored, **own, **decode})
        yield make(role="rescore", scored=[-0.1] * 4, scored_top=[[(1, -0.1)]] * 4, output_ids=[], **own)
        timing = {"latency": 1.0 + number / 100, "first_token": 0.1, "first_count": 1}
        yield make(role="timed", output_ids=IDS, **timing, **own)
        if together is not None:
            spec = {"spec_accept_length": together * wobble, "spec_accept_rate": rate}
            where = {"probe": "draft", "cell": "together", "prompt": group, "group": "batch#0"}
            yield make(role="row", spec=spec, formed=formed, **where)


def cells(observations: Iterator[Observation], plan: RunPlan = PLAN) -> dict[str, CellVerdict]:
    found = judge(plan, Arm(name="none"), RECORD, list(observations), Thresholds())
    return {cell.name: cell for cell in found}


def test_a_draft_that_is_as_good_alone_passes(observation: Make) -> None:
    found = cells(sends(observation))
    assert {cell.state for cell in found.values()} == {PASS}
    readings = {one.name: one.value for one in found["acceptance"].readings}
    assert readings["accept length alone"] == pytest.approx(2.55)
    assert readings["TPOT"] == pytest.approx(1000 * (1.035 - 0.1) / 3)
    assert readings["single stream"] == pytest.approx(3 / (1.035 - 0.1), rel=0.01)


@pytest.mark.parametrize(
    ("alone", "state"), [(1.0, FAIL), (2.2, FAIL), (2.24, FAIL), (2.3, PASS), (3.5, PASS)]
)
def test_a_draft_that_is_worse_alone_fails_though_no_logprob_moved(
    alone: float, state: str, observation: Make
) -> None:
    found = cells(sends(observation, alone=alone))
    assert (found["output"].state, found["acceptance"].state) == (PASS, state)
    assert ("worse alone" in found["acceptance"].reason) is (state == FAIL)


def test_a_wrong_output_fails_by_itself(observation: Make) -> None:
    found = cells(sends(observation, faces={"null": 4}))
    assert (found["output"].state, found["acceptance"].state) == (FAIL, PASS)
    assert found["output"].corrupt == 8


def test_what_was_not_shown_never_passes(observation: Make) -> None:
    overlap = cells(sends(observation, alone=1.0, formed="overlap"))["acceptance"]
    assert (overlap.state, "no batch is shown" in overlap.reason) == (INCONCLUSIVE, True)
    assert cells(sends(observation, together=None))["acceptance"].state == NOT_APPLICABLE
    assert cells(sends(observation, spec={}))["acceptance"].state == NOT_EXERCISED
    poor = cells(sends(observation, alone=1.0, together=1.0, rate=0.01))["acceptance"]
    assert (poor.state, "hardly ever" in poor.reason) == (INCONCLUSIVE, True)
    assert cells(sends(observation, count=3))["output"].state == INCONCLUSIVE


def test_two_arms_are_paired_by_prompt_and_only_shown(observation: Make) -> None:
    by_arm = {"none": list(sends(observation, alone=1.0)), "splitk": list(sends(observation, alone=2.0))}
    (found,) = compare(PLAN, {"none": RECORD, "splitk": RECORD}, by_arm, Thresholds())
    assert (found.arms, found.state) == (("none", "splitk"), SHOWN)
    assert "2.00 times" in found.reason
    rows = {row.name: row for row in found.rows}
    assert rows["accept length"].ratio == pytest.approx(2.0)
    assert rows["TPOT"].ratio == pytest.approx(1.0)
    assert all(row.n == 8 for row in rows.values())
    record = ArmRecord("none", 1, skipped={"draft": "no speculative decoding"})
    assert compare(PLAN, {"none": record, "splitk": record}, by_arm, Thresholds()) == []


@pytest.mark.parametrize(
    ("spec", "length", "rate"),
    [
        ({"spec_accept_length": 2.5, "spec_accept_rate": 0.5}, 2.5, 0.5),
        ({"spec_verify_ct": 2.0, "spec_num_correct_drafts": 3.0, "spec_num_proposed_drafts": 6.0}, 2.0, 0.5),
        ({"spec_verify_ct": 2.0, "spec_accepted_drafts": 2.0, "spec_proposed_drafts": 8.0}, 2.0, 0.25),
        ({"spec_verify_ct": 4.0, "spec_accept_token_num": 1.0, "spec_draft_token_num": 4.0}, 1.0, 0.25),
        ({"spec_verify_ct": 4.0}, 1.0, None),
    ],
)
def test_acceptance_by_the_names_of_each_release(
    spec: dict[str, float], length: float, rate: float | None
) -> None:
    answer = Answer(status=200, latency=0.1, output_ids=IDS, spec=spec)
    assert acceptance(answer) == Acceptance(length, rate)


def test_no_figures_no_acceptance() -> None:
    assert acceptance(Answer(status=200, latency=0.1, output_ids=IDS)) is None
