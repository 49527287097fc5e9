"""Equivalence of two arms on records made by hand: the rerun noise is the measure."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fidelity import plan as plans
from fidelity.judging.apart import hold, starts
from fidelity.judging.equivalence import JSD, MOVE, compare, judge
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import RunPlan, Thresholds
from fidelity.verdicts import INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict, Comparison

LIMITS = Thresholds()
PROMPTS, TOKENS = 8, 16
LENGTHS = (193, 385)


def plan(**second: Any) -> RunPlan:
    arms = [{"name": "none"}, {"name": "splitk", "guard": "splitk", **second}]
    return plans.build({"arms": arms, "probes": ["equivalence"]})


@pytest.fixture
def start(observation: Callable[..., Observation]) -> Callable[..., list[Observation]]:
    """One start of one server: every logprob moved by noise of its own, of the first token by 0.01 at most;
    `moved` nats more for all prompt tokens, `flatter` takes that probability from the first token."""

    def make(
        visit: int, seed: int, noise: float = 0.01, moved: float = 0.0, flatter: float = 0.0, **over: Any
    ) -> list[Observation]:
        rng = np.random.default_rng(seed)
        found = []
        for prompt in range(PROMPTS):
            for length in LENGTHS:
                first = 0.8 - flatter
                spread = (
                    np.log([first, 0.1 + flatter, 0.05, 0.01]) + rng.normal(0, min(noise, 0.01), 4) - 0.05
                )
                scored = -1.0 - np.arange(TOKENS) / 10 + rng.normal(0, noise, TOKENS) - moved
                given: dict[str, Any] = {
                    "probe": "equivalence",
                    "role": "cold",
                    "visit": visit,
                    "cell": f"L={length}",
                    "group": f"p{prompt}@{length}",
                    "prompt": f"p{prompt}",
                    "cached_tokens": 0,
                    "tail": None,
                    "top": [list(zip([5, 6, 7, 8], map(float, spread), strict=True))],
                    "logprobs": [float(spread[0])],
                    "scored": [float(value) for value in scored],
                    "values": 21,
                }
                found.append(observation(**{**given, **over}))
        return found

    return make


def compared(
    first: Sequence[Observation], second: Sequence[Observation], given: RunPlan | None = None
) -> Comparison:
    (one,) = compare(given or plan(), {}, {"none": first, "splitk": second}, LIMITS)
    return one


def judged(observations: Sequence[Observation]) -> CellVerdict:
    (cell,) = judge(plan(), plan().arms[0], ArmRecord("none", 1), observations, LIMITS)
    return cell


def arm(start: Any, seed: int, **given: Any) -> list[Observation]:
    return [*start(1, seed, **given), *start(2, seed + 1, **given)]


def test_arms_within_their_own_noise_are_equivalent(start: Any) -> None:
    one = compared(arm(start, 0), arm(start, 10))
    assert one.state == "pass"
    assert [figure.holds for figure in one.figures] == [True, True]
    rows = {row.name: row for row in one.rows}
    assert one.headings == ("reruns of one arm", "between the arms")
    move = rows[f"{MOVE}, mean"]
    # |difference| of two normal values of sd 0.01: 2 x 0.01 / sqrt(pi).
    assert (move.first, move.second) == pytest.approx((0.01128, 0.01128), rel=0.1)
    assert move.low < 1 < move.high
    assert move.n == PROMPTS
    # Half of a normal of sd 0.01 sqrt 2 lies within 0.6745 sd.
    assert rows[f"{MOVE}, p50"].second == pytest.approx(0.6745 * 0.01 * math.sqrt(2), rel=0.1)
    assert one.reason.startswith("KL between the arms ")
    assert "none with itself" in one.reason
    assert "splitk with itself" in one.reason


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_guard_that_moves_what_it_must_not_touch_fails(start: Any, noise: float) -> None:
    moved = compared(arm(start, 0, noise=noise), arm(start, 10, noise=noise, moved=0.2))
    assert [(figure.name.startswith(MOVE), figure.holds) for figure in moved.figures] == [
        (False, True),
        (True, False),
    ]
    assert moved.state == "fail"
    flatter = compared(arm(start, 0, noise=noise), arm(start, 10, noise=noise, flatter=0.2))
    assert [figure.holds for figure in flatter.figures] == [False, True]
    assert flatter.state == "fail"


def test_a_shift_on_one_start_only_is_rerun_noise_too(start: Any) -> None:
    # The second start of the guarded arm moved: so did its rerun, and nothing can be told apart.
    second = [*start(1, 10), *start(2, 11, moved=0.2)]
    one = compared(arm(start, 0), second)
    assert one.state == "pass"
    assert one.figures[1].value < one.figures[1].threshold
    assert one.figures[1].threshold > LIMITS.least_move


def test_the_noise_of_reruns_widens_what_is_allowed(start: Any) -> None:
    # Beyond the least margin, and within twice the noise of servers this noisy.
    loud = compared(arm(start, 0, noise=0.2), arm(start, 10, noise=0.2, moved=0.1))
    assert loud.state == "pass"
    assert loud.figures[1].threshold == pytest.approx(2 * 0.2 * 2 / math.sqrt(math.pi), rel=0.1)


def test_near_the_margin_is_inconclusive(start: Any) -> None:
    first = arm(start, 0, noise=0.0)
    # Half of the prompts by much, half not at all: the mean is near the margin, its interval wide.
    second = [
        moved if int(still.prompt[1:]) % 2 else still
        for still, moved in zip(
            arm(start, 0, noise=0.0), arm(start, 0, noise=0.0, moved=2 * LIMITS.least_move), strict=True
        )
    ]
    assert compared(first, second).state == "inconclusive"


def test_identical_servers_have_a_ratio_of_nothing(start: Any) -> None:
    one = compared(arm(start, 0, noise=0.0), arm(start, 0, noise=0.0))
    assert one.state == "pass"
    assert all(row.first == row.second == 0 for row in one.rows)
    assert all(math.isnan(row.ratio) for row in one.rows)


def test_broken_answers(start: Any) -> None:
    broken = {"faces": {"nan": 3}, "scored": [math.nan] * TOKENS}
    bad, good = arm(start, 0, **broken), arm(start, 0)
    assert compared(good, bad).state == "fail"
    assert "cold answers of splitk are broken: NaN: 3 nan" in compared(good, bad).reason
    no_reference = compared(bad, good)
    assert (no_reference.state, "nothing to be equivalent to" in no_reference.reason) == ("shown", True)
    cell = judged(bad)
    assert (cell.state, cell.corrupt_sends) == ("fail", 32)
    assert cell.reason == "32 of 32 cold answers are broken: NaN: 3 nan"
    assert judged(good).state == "pass"


def test_one_nan_among_many_is_not_averaged_away(start: Any) -> None:
    second = arm(start, 10)
    second[3].answer.scored[2] = math.nan
    one = compared(arm(start, 0), second)
    assert one.state == "inconclusive"
    assert math.isnan(one.figures[1].value)


def test_one_start_is_no_rerun(start: Any) -> None:
    assert judged(start(1, 0)).state == "not exercised"
    assert judged([]).reason == "nothing was measured"
    one = compared(arm(start, 0), start(1, 10))
    assert (one.state, one.reason) == ("inconclusive", "splitk was not measured on two starts")
    assert compared(arm(start, 0), start(1, 10), plan(baseline=True)).state == "shown"
    # Two starts without a prompt in common are none either.
    apart = [*start(1, 10)[:3], *start(2, 11)[3:]]
    assert compared(arm(start, 0), apart).reason == "no prompt was answered on every start"
    assert judged(apart).reason == "nothing was answered on two starts"


def test_what_was_not_answered_everywhere_is_no_pass(start: Any) -> None:
    second = arm(start, 10)
    second[5].answer.error = "timeout"
    one = compared(arm(start, 0), second)
    assert one.state == "inconclusive"
    assert one.reason.startswith("1 prompts and lengths were not answered on every start")
    assert judged(second).missed == {"the request failed": 1}
    again = [*second, *[obs for obs in start(1, 10, attempt=1) if obs.group == second[5].group]]
    assert compared(arm(start, 0), again).state == "pass"


def test_a_baseline_never_decides(start: Any) -> None:
    one = compared(arm(start, 0), arm(start, 10, moved=1.0), plan(baseline=True))
    assert (one.state, [figure.holds for figure in one.figures]) == ("shown", [True, False])


def test_the_cell_shows_what_a_restart_changes(start: Any) -> None:
    told = {reading.name: reading.value for reading in judged(arm(start, 0)).readings}
    assert told[f"{MOVE}, mean"] == pytest.approx(0.01128, rel=0.15)
    assert told[f"{JSD}, mean"] < 1e-3
    assert told["prompt tokens compared"] == PROMPTS * len(LENGTHS) * TOKENS
    assert list(told)[4:7] == [f"{MOVE}, p{level}" for level in (50, 90, 99)]


def test_mismatched_logprobs_are_nothing_to_compare(start: Any) -> None:
    first, second = starts(start(1, 0)), starts(start(1, 0, mismatched=True))
    found = hold(first[1], second[1])
    assert np.isnan(found.jsd).all()
    assert np.isnan(found.move).all()


@pytest.mark.parametrize(
    ("odd", "state"), [(0, PASS), (3, INCONCLUSIVE), (PROMPTS * len(LENGTHS), NOT_EXERCISED)]
)
def test_what_cannot_be_compared_is_no_pass(odd: int, state: str, start: Any) -> None:
    sent = arm(start, 0)
    groups = sorted({obs.group for obs in sent})[:odd]
    for obs in sent:
        obs.answer.mismatched = obs.group in groups
    cell = judged(sent)
    assert cell.state == state
    assert ("have no logprobs to compare" in cell.reason) is bool(odd)
