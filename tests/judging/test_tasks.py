"""The tasks verdict on records made by hand: accuracy is no proof where no hit had a suspect tail."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging import tasks
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.probes.cells import Cell
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict

PLAN = plans.build({"probes": ["tasks"]})


@pytest.fixture
def ask(observation: Callable[..., Observation]) -> Callable[..., list[Observation]]:
    def make(number: int, cold: str = "5", hit: str = "5", **given: Any) -> list[Observation]:
        own = {
            "probe": "tasks",
            "cell": "sums",
            "prompt": f"sums:{number}",
            "group": f"sums: {number}",
            "expected_text": "5",
        }
        return [
            observation(role="cold", text=cold, cached_tokens=0, expected_cached=0, **own),
            observation(role="hit", **{"text": hit, "expected_cached": 192, **own, **given}),
        ]

    return make


def judged(groups: Sequence[list[Observation]], min_tail: int = 1) -> CellVerdict:
    record = ArmRecord("none", min_tail, cells=[Cell("L=193 tail=1", "suspect", 193, 1, "")])
    observations = [obs for group in groups for obs in group]
    (cell,) = tasks.judge(PLAN, PLAN.arms[0], record, observations, PLAN.thresholds)
    return cell


def readings(cell: CellVerdict) -> dict[str, float]:
    return {one.name: one.value for one in cell.readings}


def test_a_significant_loss_fails(ask: Any) -> None:
    cell = judged([*(ask(n, hit="7") for n in range(10)), *(ask(n) for n in range(10, 40))])
    assert (cell.state, cell.corrupt, cell.exercised) == (FAIL, 10, 40)
    assert cell.reason.startswith("accuracy cold 1, hit 0.75 (10 lost, 0 gained); hits 40 of 40")
    assert cell.examples[0].other == "7"


def test_a_loss_that_may_be_chance_is_no_pass(ask: Any) -> None:
    assert (
        judged([*(ask(n, hit="7") for n in range(5)), *(ask(n) for n in range(5, 40))]).state == INCONCLUSIVE
    )
    both = [*(ask(n, hit="7") for n in range(5)), *(ask(n, cold="7") for n in range(5, 10))]
    assert judged([*both, *(ask(n) for n in range(10, 40))]).state == PASS


def test_a_pass_says_what_it_could_not_have_seen(ask: Any) -> None:
    cell = judged([ask(n) for n in range(40)])
    assert cell.state == PASS
    assert cell.reason.endswith(
        "40 with a suspect tail; a loss of less than 10 of 40 answers would not have been seen"
    )
    assert readings(cell)["hits"] == readings(cell)["attempts"] == 40
    assert readings(cell)["accuracy, hit minus cold"] == 0


def test_without_suspect_tails_the_path_is_not_exercised(ask: Any) -> None:
    control = {"kind": "control", "length": 225, "prompt_tokens": 225}
    cell = judged([ask(n, **control) for n in range(40)])
    assert cell.state == NOT_EXERCISED
    assert "0 with a suspect tail: the path was not exercised" in cell.reason
    assert cell.tails == {"33": 40}
    few = [*(ask(n) for n in range(9)), *(ask(n, **control) for n in range(9, 40))]
    assert judged(few).state == INCONCLUSIVE
    assert "shows from 10 of them up" in judged(few).reason


def test_hits_of_attempts(ask: Any) -> None:
    cell = judged([*(ask(n) for n in range(38)), *(ask(n, cached_tokens=0) for n in range(38, 40))])
    assert cell.state == PASS
    assert "hits 38 of 40" in cell.reason
    assert cell.missed == {"no hit: cached_tokens 0 instead of 192": 2}
    none = judged([ask(n, expected_cached=0, cached_tokens=0) for n in range(12)])
    assert none.state == NOT_EXERCISED
    assert "a prompt of 193 tokens is not served from the cache" in none.reason


def test_a_nan_fails_by_itself(ask: Any) -> None:
    cell = judged([ask(0, faces={"null": 1}), *(ask(n) for n in range(1, 40))])
    assert (cell.state, cell.rules) == (FAIL, {"NaN": 1})
    # Of an answer that a rule breaks, even one without a suspect tail counts.
    assert judged([ask(0, faces={"null": 1}, kind="control")]).state == FAIL


def test_a_guard_that_retreats_is_held_to_its_own_prediction(ask: Any) -> None:
    groups = [ask(n, cached_tokens=128, expected_cached=128) for n in range(40)]
    assert judged(groups, min_tail=2).state == PASS
    whole = [ask(n, cached_tokens=0, expected_cached=0) for n in range(40)]
    assert judged(whole, min_tail=2).state == PASS
    assert "hits 0 of 40, 40 with a suspect tail that the guard avoids" in judged(whole, min_tail=2).reason
    assert judged(whole).state == NOT_EXERCISED
    assert judged([ask(n, cached_tokens=128) for n in range(40)]).state == NOT_EXERCISED


def test_the_least_loss_that_shows() -> None:
    assert [tasks.least_loss(alpha) for alpha in (0.06, 0.05, 0.001, 2**-10)] == [5, 5, 10, 11]


def test_nothing_asked(ask: Any) -> None:
    assert judged([]).state == NOT_EXERCISED
