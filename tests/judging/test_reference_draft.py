"""A draft's acceptance against a trusted server's, on records made by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging.reference import judge
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.probes.draft import ALONE, PROBE
from fidelity.reference import DRAFTED
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_APPLICABLE, NOT_EXERCISED, PASS, CellVerdict

PROMPTS = 8
PLAN = plans.build({"reference": "run", "probes": ["draft"]})

Make = Callable[..., list[Observation]]


@pytest.fixture
def drafts(observation: Callable[..., Observation]) -> Make:
    """One answer of each prompt, of `length` tokens a verification, more from prompt to prompt."""

    def make(
        length: float | None, role: str = "decode", rate: float = 0.5, first: int = 0
    ) -> list[Observation]:
        where: dict[str, Any] = {"probe": "reference"} if role == DRAFTED else {"probe": PROBE, "cell": ALONE}
        found = []
        for number in range(PROMPTS):
            spec = (
                {}
                if length is None
                else {"spec_accept_length": length + number / 10, "spec_accept_rate": rate}
            )
            found.append(observation(role=role, input_ids=[first + number], spec=spec, **where))
        return found

    return make


def judged(own: list[Observation], told: list[Observation]) -> CellVerdict:
    record = ArmRecord("none", 1, reference="the reference is X")
    (cell,) = judge(PLAN, PLAN.arms[0], record, own, told, PLAN.thresholds)
    return cell


def test_the_same_acceptance_passes(drafts: Make) -> None:
    cell = judged(drafts(2.0), drafts(2.05, DRAFTED))
    assert (cell.state, cell.exercised, cell.why) == (PASS, PROMPTS, "the reference is X")
    assert all(figure.holds for figure in cell.figures)


def test_a_draft_that_is_worse_fails(drafts: Make) -> None:
    cell = judged(drafts(1.0), drafts(2.0, DRAFTED))
    assert cell.state == FAIL
    assert "the draft is worse than the reference's" in cell.reason
    assert {reading.name: reading.value for reading in cell.readings} == {
        "accept length of the reference, median": pytest.approx(2.35),
        "accept length, median": pytest.approx(1.35),
    }


def test_what_lies_between_is_not_decided(drafts: Make) -> None:
    assert judged(drafts(1.5), drafts(1.9, DRAFTED)).state == FAIL
    own = [*drafts(2.0)[:4], *drafts(1.2)[4:]]
    assert judged(own, drafts(2.0, DRAFTED)).state == INCONCLUSIVE


def test_a_reference_whose_own_draft_fails_judges_nobody(drafts: Make) -> None:
    cell = judged(drafts(1.0), drafts(2.0, DRAFTED, rate=0.01))
    assert cell.state == INCONCLUSIVE
    assert "the reference's own draft is hardly ever accepted" in cell.reason


def test_what_cannot_be_compared(drafts: Make) -> None:
    assert judged(drafts(2.0), []).state == NOT_APPLICABLE
    assert judged(drafts(2.0), drafts(None, DRAFTED)).state == NOT_APPLICABLE
    assert judged(drafts(None), drafts(2.0, DRAFTED)).state == NOT_EXERCISED
    assert judged(drafts(2.0), drafts(2.0, DRAFTED, first=100)).state == NOT_EXERCISED
    skipped = ArmRecord("none", 1, skipped={"draft": "no speculative decoding"})
    assert judge(PLAN, PLAN.arms[0], skipped, [], drafts(2.0, DRAFTED), PLAN.thresholds) == []
