"""Cold answers against a trusted server's, on records made by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fidelity import plan as plans
from fidelity.judging.reference import judge
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.probes.cells import Cell
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict

PROMPTS = 8
PLAN = plans.build({"reference": "run", "probes": ["resend"]})
DECODED = plans.build({"reference": "run", "probes": ["decode"]})
CELL = Cell("L=193 tail=1", "suspect", 193, 1, "")

Make = Callable[..., list[Observation]]


@pytest.fixture
def cold(observation: Callable[..., Observation]) -> Make:
    """One cold answer for each prompt. `noise` moves every logprob, `moved` those of the unlikely ids, both
    in nats; `odd` goes to the answers of the first prompts, `odds` of them."""

    def make(
        arm: str = "none",
        role: str = "cold",
        noise: float = 0.0,
        moved: float = 0.0,
        first: float = 0.97,
        odds: int = 1,
        **odd: Any,
    ) -> list[Observation]:
        rng = np.random.default_rng(len(arm) + len(role))
        found = []
        for number in range(PROMPTS):
            logprobs = np.log([first, 0.01, 0.003, 0.001, 0.0003]) + rng.normal(0, noise, 5) - 4 * noise
            logprobs[1:] -= moved
            given: dict[str, Any] = {
                "arm": arm,
                "probe": "reference" if arm == "reference" else "resend",
                "role": role,
                "prompt": f"p{number}",
                "group": f"p{number}@193",
                "input_ids": [number, 2, 3],
                "cached_tokens": 0,
                "tail": None,
                "top": [list(zip([5, 6, 7, 8, 9], map(float, logprobs), strict=True))],
                "logprobs": [float(logprobs[0])],
            }
            found.append(observation(**{**given, **(odd if number < odds else {})}))
        return found

    return make


def judged(own: list[Observation], told: list[Observation], plan: Any = PLAN) -> CellVerdict:
    record = ArmRecord("none", 1, cells=[CELL], reference="the reference is X")
    (cell,) = judge(plan, plan.arms[0], record, own, told, plan.thresholds)
    return cell


def test_a_healthy_server_passes(cold: Make) -> None:
    told = [*cold("reference", noise=0.002), *cold("reference", "cold2", noise=0.002)]
    cell = judged(cold(noise=0.002), told)
    assert (cell.state, cell.name, cell.length) == (PASS, "L=193 cold against the reference", 193)
    assert cell.agreement == {"same": PROMPTS}
    assert (cell.prompts, cell.exercised, cell.corrupt) == (PROMPTS, PROMPTS, 0)
    assert cell.why == "the reference is X"
    assert all(figure.holds for figure in cell.figures)


def test_logprobs_that_moved_without_a_flip(cold: Make) -> None:
    cell = judged(cold(moved=0.5), cold("reference"))
    assert (cell.state, cell.corrupt) == (FAIL, 0)
    assert "mean |delta logprob| 0.4 nat, at least 0.4, allowed 0.12" in cell.reason
    assert judged(cold(moved=0.1), cold("reference")).state == PASS


def test_probability_that_moved(cold: Make) -> None:
    cell = judged(cold(first=0.9), cold("reference"))
    assert cell.state == FAIL
    assert "mean JSD" in cell.reason


def test_ids_that_the_reference_was_asked_for_count_too(cold: Make) -> None:
    """Those that this server answered and the reference did not list."""
    own = cold()
    told = cold("reference", odds=PROMPTS, asked=[[(8, math.log(0.0001)), (9, math.log(0.00001))]])
    for obs in told:
        obs.answer.top[0] = obs.answer.top[0][:3]
    assert judged(own, told).state == FAIL
    for obs in told:
        obs.answer.asked = []
    assert judged(own, told).state == PASS


def test_the_references_own_noise_is_allowed(cold: Make) -> None:
    own, noisy = cold(moved=0.2), cold("reference", "cold2", moved=0.2)
    assert judged(own, cold("reference")).state == FAIL
    assert judged(own, [*cold("reference"), *noisy]).state == PASS


def test_the_arms_own_noise_is_not(cold: Make) -> None:
    assert judged([*cold(moved=0.2), *cold(role="cold2", moved=0.6)], cold("reference")).state == FAIL


def test_a_spread_too_wide_to_tell(cold: Make) -> None:
    cell = judged(cold(odds=2, top=[[(5, -0.03), (6, -7.0), (7, -7.5)]]), cold("reference"))
    assert cell.state == INCONCLUSIVE
    assert "not shown to be the reference's" in cell.reason


@pytest.mark.parametrize("token", [6, 400])
def test_one_flip_against_a_sure_reference(token: int, cold: Make) -> None:
    top = [[(token, -0.03), (5, -4.0), (7, -6.0)]]
    cell = judged(cold(output_ids=[token], top=top, text="Rome"), cold("reference"))
    assert (cell.state, cell.corrupt) == (FAIL, 1)
    assert cell.reason.startswith(f"1 of {PROMPTS} cold answers corrupt: p0: ")
    assert (cell.examples[0].cold, cell.examples[0].other) == ("Paris", "Rome")


def test_a_flip_that_the_reference_was_not_sure_of_is_no_proof(cold: Make) -> None:
    unsure = [[(5, -0.8), (6, -1.0), (7, -4.0)]]
    told = cold("reference", top=unsure, logprobs=[-0.8])
    flipped = [[(6, -0.8), (5, -1.0), (7, -4.0)]]
    cell = judged(cold(output_ids=[6], top=flipped, logprobs=[-0.8]), told)
    assert (cell.corrupt, cell.agreement["hard flip"]) == (0, 1)


def test_an_answer_that_is_broken(cold: Make) -> None:
    cell = judged(cold(faces={"null": 6}), cold("reference"))
    assert (cell.state, cell.corrupt) == (FAIL, 1)
    assert "NaN" in cell.reason


def test_a_broken_reference_judges_nobody(cold: Make) -> None:
    told = cold("reference", faces={"null": 6})
    for own in (cold(), cold(moved=0.5), cold(odds=PROMPTS, output_ids=[6])):
        cell = judged(own, told)
        assert cell.state == INCONCLUSIVE
        assert "1 of the reference's own answers are broken (p0: NaN" in cell.reason


def test_what_cannot_be_compared(cold: Make) -> None:
    told = cold("reference")
    assert judged(cold(odds=PROMPTS, input_ids=[99]), told).state == NOT_EXERCISED
    assert judged([], told).reason == "nothing was measured"
    some = judged(cold(input_ids=[99]), told)
    assert (some.state, some.exercised) == (PASS, PROMPTS - 1)
    assert some.reason.startswith("7 of 8 cold answers have one to the same ids in the reference; ")
    warm = judged(cold(), cold("reference", cached_tokens=128))
    assert warm.state == INCONCLUSIVE
    assert warm.missed == {"of the reference: the cold send was served from the cache": 1}
    assert judged(cold(cached_tokens=128), told).state == INCONCLUSIVE
    failed = judged(cold(), cold("reference", error="HTTP 500", status=500, top=[], output_ids=[]))
    assert (failed.state, failed.missed) == (INCONCLUSIVE, {"of the reference: the cold request failed": 1})


def test_too_few_prompts_pass_nothing(cold: Make) -> None:
    cell = judged(cold()[:3], cold("reference"))
    assert cell.state == INCONCLUSIVE
    assert judged(cold(moved=0.5)[:2], cold("reference")).state == INCONCLUSIVE


@pytest.fixture
def generated(observation: Callable[..., Observation]) -> Make:
    """Six generated answers of four tokens and their clean prefill; one token is `low` nats below the
    best."""

    def make(arm: str = "none", moved: float = 0.0, low: float = 0.0, **odd: Any) -> list[Observation]:
        found = []
        for number in range(6):
            scored = [-0.1 - moved, -0.2, -0.3 - low, -0.4 + moved / 2]
            top = [[(5, max(value, -0.3))] for value in scored]
            same = {"arm": arm, "prompt": f"p{number}", "group": f"d{number}", "cell": "T=0"}
            ids = [number, 8, 5, 5, 6, 6]
            answer = {"scored": scored, "scored_top": top, "top": [], "output_ids": [], **odd}
            if arm == "none":
                given = {**same, "probe": "decode", "output_ids": ids[2:], "logprobs": [-0.1] * 4}
                found.append(observation(role="decode", input_ids=ids[:2], **given))
                found.append(observation(role="rescore", **{**same, "probe": "decode"}, **answer))
            else:
                found.append(
                    observation(role="rescore", input_ids=ids, **{**same, "probe": "reference"}, **answer)
                )
        return found

    return make


def test_generated_answers(generated: Make) -> None:
    cell = judged(generated(), generated("reference"), DECODED)
    assert (cell.state, cell.name, cell.exercised) == (PASS, "answers against the reference", 6)
    moved = judged(generated(moved=0.6), generated("reference"), DECODED)
    assert (moved.state, moved.corrupt) == (FAIL, 0)
    for own, told in ((0.0, 4.0), (4.0, 0.0)):
        apart = judged(generated(low=own), generated("reference", low=told), DECODED)
        assert (apart.state, apart.corrupt) == (FAIL, 6)
        assert "worst 4.0 nat" in apart.reason


def test_generated_answers_that_are_no_numbers(generated: Make) -> None:
    nan = {"faces": {"null": 1}, "scored": [math.nan] * 4}
    assert judged(generated(**nan), generated("reference"), DECODED).state == FAIL
    broken = judged(generated(), generated("reference", **nan), DECODED)
    assert broken.state == INCONCLUSIVE
    assert judged(generated(), [], DECODED).state == NOT_EXERCISED
