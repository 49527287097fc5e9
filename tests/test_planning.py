"""What a plan promises, against counting by hand and against draws."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.errors import PlanError, UsageError
from fidelity.execute import extend
from fidelity.manifest import Manifest
from fidelity.plan import RunPlan, Thresholds, build
from fidelity.planning import assumed_facts, lines, look_ahead, sized_by_minutes, sized_by_rate
from fidelity.power import failed, not_passed, smallest_failed

LIMITS = Thresholds()


def names(plan: RunPlan, kind: str) -> list[str]:
    return [cell.name for cell in look_ahead(plan, 0.1).cells if cell.kind == kind]


def test_the_default_plan() -> None:
    outlook = look_ahead(build({}), 0.5)
    assert [cell.name for cell in outlook.cells] == ["L=193 tail=1", "L=194 tail=2", "L=225 tail=33"]
    # 16 + 4 + 4 to warm up, 30 to screen, 30 prompts x 3 cells x (cold, cold again, 2 hits), 6 answers
    # decoded and scored twice.
    assert outlook.requests == 24 + 30 + 360 + 18
    assert outlook.minutes == pytest.approx(outlook.requests * 0.5 / 60)
    assert outlook.bound == pytest.approx(1 - 0.05 ** (1 / 30))
    assert outlook.prompts_to_pass == 29
    assert outlook.caught == pytest.approx(1 - 0.05 ** (1 / 30))
    assert outlook.fails_broken == pytest.approx(outlook.caught)
    assert outlook.fails_wrong == pytest.approx(0.35, abs=0.01)


def test_each_arm_is_counted_and_screens_only_once() -> None:
    guards = [{"name": "none"}, {"name": "splitk", "guard": "splitk"}]
    both = look_ahead(build({"arms": guards}), 0.1)
    assert both.requests == 2 * (24 + 360 + 18) + 30
    assert both.arms == ("none", "splitk")


@pytest.mark.parametrize(
    ("target", "suspects", "controls"),
    [
        ({"cu": 16}, [1], [2, 33]),
        ({"cu": 32}, [1, 2], [3, 33]),
        ({"cu": 64}, [1, 2, 3, 4], [5, 33]),
        ({"kind": "attach", "url": "http://h"}, [1, 2, 3, 4], [33]),
    ],
)
def test_cells_come_from_the_shapes_or_from_caution(
    target: dict[str, Any], suspects: list[int], controls: list[int]
) -> None:
    plan = build({"target": target})
    assert names(plan, "suspect") == [f"L={192 + tail} tail={tail}" for tail in suspects]
    assert names(plan, "control") == [f"L={192 + tail} tail={tail}" for tail in controls]


def test_a_named_gpu_tells_the_region_of_a_preset() -> None:
    plan = build({"target": {"kind": "process", "model": "Qwen3.6-35B-A3B-FP8", "gpu": "mi350x"}})
    assert assumed_facts(plan.target).fault_region == 1
    assert names(plan, "suspect") == ["L=193 tail=1"]


def test_no_buffer_has_pages_of_one_token() -> None:
    facts = assumed_facts(build({"target": {"strategy": "no_buffer"}}).target)
    assert (facts.grid, facts.strategy) == (64, "no_buffer")


@pytest.mark.parametrize(("rate", "prompts"), [(0.1, 29), (0.05, 59), (0.02, 149), (0.01, 299)])
def test_a_rate_takes_so_many_prompts(rate: float, prompts: int) -> None:
    plan = sized_by_rate(build({"thresholds": {"max_rate": rate}}))
    assert plan.prompts.count == prompts
    assert look_ahead(plan, 0.1).bound <= rate


@pytest.mark.parametrize("minutes", [0.2, 1, 5, 60])
def test_minutes_allow_so_many_prompts_and_not_one_more(minutes: float) -> None:
    plan = sized_by_minutes(build({}), minutes, 0.1)
    assert look_ahead(plan, 0.1).minutes <= minutes
    assert look_ahead(plan.with_prompts(plan.prompts.count + 1), 0.1).minutes > minutes


def test_too_few_minutes_are_refused() -> None:
    with pytest.raises(PlanError, match=r"do not allow one prompt \(55 requests\)"):
        sized_by_minutes(build({}), 0.05, 0.1)


def test_two_looks_need_more_prompts_to_pass() -> None:
    outlook = look_ahead(build({"thresholds": {"looks": 2}}), 0.1)
    assert outlook.prompts_to_pass == 36
    assert outlook.bound == pytest.approx(1 - 0.025 ** (1 / 30))
    said = "\n".join(lines(outlook))
    assert "(2 looks share the error rates)" in said
    assert "this plan cannot pass: that takes 36 prompts, none of them corrupt" in said


def test_a_plan_in_words() -> None:
    said = list(lines(look_ahead(build({}), 0.1)))
    assert said == [
        "plan 'default' for fidelity-embedded, quiz-state, which was not asked; arms: none; "
        "probes: resend, decode",
        "suspects: L=193 tail=1",
        "controls: L=194 tail=2, L=225 tail=33",
        "because by its shapes the server is affected up to M = 1",
        "30 prompts in each cell, 2 hits each: 432 requests, 0.7 minutes at 0.1 s each, without the server's "
        "start",
        "0 corrupt of 30 bound the corruption rate at 9.6 % at 95 %; allowed are 10 %",
        "caught (not passed) with 95% power: true rates from 9.6 %",
        "failed with 95% power: NaN or another broken rule from 9.6 %, wrong first tokens from 35.6 %",
        "logprobs that move without a wrong token: seen where a suspect's mean JSD exceeds its control's by "
        "2 times the control's own (0.001 nat at least), or its mean |delta logprob| likewise (0.125 nat at "
        "least)",
        "not seen: batches; speculative decoding; other lengths; "
        "errors that cold answers share (--reference)",
    ]


@given(n=st.integers(1, 300), rate=st.floats(0, 1))
def test_not_passed_is_one_corrupt_prompt_or_more(n: int, rate: float) -> None:
    assert not_passed(n, rate) == pytest.approx(1 - (1 - rate) ** n, abs=1e-9)
    assert failed(n, rate, "broken", LIMITS, 1) == not_passed(n, rate)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 120), rate=st.floats(0.01, 0.99), tests=st.integers(1, 8))
def test_wrong_tokens_fail_less_often_than_they_keep_from_passing(n: int, rate: float, tests: int) -> None:
    share = failed(n, rate, "wrong", LIMITS, tests)
    assert 0 <= share <= not_passed(n, rate) + 1e-12
    assert share <= failed(n, min(1.0, rate + 0.05), "wrong", LIMITS, tests) + 1e-12
    assert share >= failed(n, rate, "wrong", LIMITS, tests + 1)


def test_more_tests_leave_less_power_to_each() -> None:
    assert failed(30, 0.2, "wrong", LIMITS, 8) < failed(30, 0.2, "wrong", LIMITS, 1) - 1e-3


@pytest.mark.parametrize(("n", "rate"), [(30, 0.2), (30, 0.35), (60, 0.2), (299, 0.03)])
def test_the_power_to_fail_by_draws(n: int, rate: float) -> None:
    """x corrupt prompts fail by their rate, or when 2^-x times a uniform share is below alpha."""
    limits = Thresholds(max_rate=0.01 if n == 299 else 0.1)
    rng = np.random.default_rng(0)
    bad = rng.binomial(n, rate, 200_000)
    by_rate = bad >= {30: 7, 60: 11, 299: 7}[n]
    by_shift = 2.0**-bad * rng.random(len(bad)) < limits.alpha / 2
    assert failed(n, rate, "wrong", limits, 2) == pytest.approx((by_rate | by_shift).mean(), abs=0.005)


def test_the_smallest_rate_is_where_the_power_is_reached() -> None:
    rate = smallest_failed(60, "wrong", LIMITS, 1)
    assert rate is not None
    assert failed(60, rate, "wrong", LIMITS, 1) == pytest.approx(0.95, abs=1e-6)
    assert smallest_failed(1, "wrong", LIMITS, 1) is None  # one prompt proves no rate above 10 %
    assert smallest_failed(1, "broken", LIMITS, 1) == pytest.approx(0.95)
    large = smallest_failed(3000, "wrong", Thresholds(max_rate=0.001), 1)
    assert large is not None
    assert math.isfinite(large)


def test_a_judged_run_is_extended_only_by_a_look_planned_before() -> None:
    once = Manifest("r", "s", build({}))
    with pytest.raises(UsageError, match="looks that the plan of this run allows: 1; taken: 1") as caught:
        extend(once, 60)
    assert "looks: 2" in (caught.value.hint or "")
    assert once.plan.prompts.count == 30
    twice = Manifest("r", "s", build({"thresholds": {"looks": 2}}))
    extend(twice, 30)  # not a look: nothing is added
    with pytest.raises(UsageError, match="20 are fewer"):
        extend(twice, 20)
    extend(twice, 60)
    assert (twice.plan.prompts.count, twice.looks_taken) == (60, 2)
    with pytest.raises(UsageError, match="allows: 2; taken: 2"):
        extend(twice, 90)
