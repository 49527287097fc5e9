"""Verdicts made by hand: what a judge could say of runs that passed, failed, proved nothing or broke off."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fidelity.manifest import ArmRecord, Manifest
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.cells import Cell
from fidelity.verdicts import (
    COULD_NOT_RUN,
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    ArmVerdict,
    CellVerdict,
    Divergences,
    Example,
    Figure,
    RunVerdict,
    Spread,
)

GARBAGE = "\x1b[31m\x00|`*<b>\ud800 niestety\nsvp"
"""What a broken server may say, with all that a terminal, XML or Markdown could choke on."""

SIMULATED = "SIMULATED: embedded engine, not AMD hardware"
REAL = "sglang 0.5.21 serving Qwen3.6-35B-A3B-FP8, as the server reports itself"


def spread(median: float, maximum: float, nonfinite: int = 0) -> Spread:
    return Spread(n=60, nonfinite=nonfinite, median=median, p95=maximum, maximum=maximum)


def passing_cell(arm: str = "none", **changes: Any) -> CellVerdict:
    cell = CellVerdict(
        arm=arm,
        probe="resend",
        name="L=193 tail=1",
        kind="suspect",
        length=193,
        tail=1,
        why="by its shapes the server is affected up to M = 1",
        state=PASS,
        reason="0 corrupt prompts of 30: at most 9.6 % at 95%",
        prompts=30,
        exercised=30,
        corrupt=0,
        sends=60,
        corrupt_sends=0,
        agreement={"same": 60},
        rate_lower=0.0,
        rate_upper=0.09503,
        divergences=Divergences(
            spread(1.2e-6, 3.4e-5), spread(3e-7, 8e-6), spread(2e-4, 4e-4), p_covered=0.9991, q_covered=0.9990
        ),
        tails={"1": 60},
        cached={"192": 60},
        rules={},
        faces={},
        values=1260,
        missed={},
        figures=(Figure("corrupt-prompt rate: upper limit", 0.095, "<=", 0.1, "thresholds.max_rate", True),),
        examples=(),
    )
    return replace(cell, **changes)


def failing_cell(arm: str = "none", **changes: Any) -> CellVerdict:
    """Every prompt corrupt, NaN in every figure that can hold one."""
    cell = passing_cell(
        arm,
        state=FAIL,
        reason="30 corrupt prompts of 30: NaN in 60 sends",
        corrupt=30,
        corrupt_sends=60,
        agreement={"broken": 60},
        rate_lower=0.90497,
        rate_upper=1.0,
        divergences=Divergences(
            kl_lower=spread(math.inf, math.inf, 60),
            jsd_lower=spread(math.inf, math.inf, 60),
            jsd_upper=spread(math.inf, math.inf, 60),
            p_covered=0.9991,
            q_covered=math.nan,
        ),
        rules={"NaN": 60},
        faces={"null": 1260},
        figures=(Figure("corrupt-prompt rate: lower limit", 0.905, "<=", 0.1, "thresholds.max_rate", False),),
        examples=(
            Example("capital/france", "Paris", "Paris", "!" * 16, 192, 1, "NaN: 21 null", 41),
            Example("yes-no/moon", "No", "No", GARBAGE, 192, 1, "NaN: 21 null", 48),
        ),
    )
    return replace(cell, **changes)


def control_cell(arm: str = "none") -> CellVerdict:
    return passing_cell(arm, name="L=194 tail=2", kind="control", length=194, tail=2, tails={"2": 60})


def unexercised_cell(arm: str = "none") -> CellVerdict:
    missed = "no hit: cached_tokens 0 instead of 192"
    return passing_cell(
        arm,
        state=NOT_EXERCISED,
        reason=f"{missed} (60 sends)",
        exercised=0,
        rate_upper=1.0,
        divergences=None,
        tails={"193": 60},
        cached={"0": 60},
        missed={missed: 60},
        figures=(),
    )


def arm_of(*cells: CellVerdict, name: str = "none", **changes: Any) -> ArmVerdict:
    states = {cell.state for cell in cells} - {NOT_APPLICABLE}
    state = FAIL if FAIL in states else PASS if states == {PASS} else INCONCLUSIVE
    arm = ArmVerdict(
        name=name,
        guard=name,
        baseline=False,
        state=state,
        reason=cells[0].reason if cells else "nothing was measured",
        server="fidelity-embedded 0.1.0, quiz-state",
        cells=cells,
        warnings=(),
        replaced=("classifier/spam",),
        unsure=False,
        cold_right=29,
        cold_known=30,
        requests=641,
        failed_requests=2,
        seconds=12.5,
    )
    return replace(arm, **changes)


def run_of(*arms: ArmVerdict, **changes: Any) -> RunVerdict:
    states = [arm.state for arm in arms if not arm.baseline]
    state, code = (FAIL, 10) if FAIL in states else (PASS, 0) if set(states) == {PASS} else (INCONCLUSIVE, 11)
    worst = next((arm for arm in arms if arm.state == state and not arm.baseline), None)
    verdict = RunVerdict(
        state=state,
        exit_code=code,
        reason=f"arm {worst.name}: {worst.reason}" if worst else "nothing was measured",
        label=SIMULATED,
        target="embedded",
        status="complete",
        partial=False,
        error=None,
        bound="0 corrupt prompts of 30: at most 10 % at 95%" if state == PASS else "",
        arms=arms,
        not_exercised=("not asked for: batches (--probe batch)",),
        warnings=("arm none: other traffic can hide a one-token fault",),
        thresholds={"max_rate": 0.1, "confidence": 0.95, "near_tie": 0.125, "sure": 0.8},
        run_id="20260101-120000-77",
        seed=7,
        version="0.1.0",
        started="2026-01-01T12:00:00+0000",
    )
    return replace(verdict, **changes)


@pytest.fixture
def make_cell() -> Callable[..., CellVerdict]:
    """A passing cell with changes."""
    return passing_cell


@pytest.fixture
def make_arm() -> Callable[..., ArmVerdict]:
    """An arm of given cells, with changes."""
    return arm_of


@pytest.fixture
def make_verdict() -> Callable[..., RunVerdict]:
    """A run of given arms, with changes."""
    return run_of


@pytest.fixture
def make_run() -> Callable[..., RunVerdict]:
    """A run of one arm with given cells, with changes."""
    return lambda *cells, **changes: run_of(arm_of(*cells), **changes)


@pytest.fixture(name="spread")
def divergences_between() -> Callable[[float, float], Divergences]:
    """Divergences whose JSD interval is the given one."""
    return lambda low, high: Divergences(spread(low, low), spread(low, low), spread(high, high), 0.9, 0.9)


@pytest.fixture
def example() -> Callable[[str], Example]:
    """An example of a given prompt."""
    return lambda prompt: Example(prompt, "Paris", "Paris", "!", 192, 1, "NaN: 1 null", 1)


@pytest.fixture
def real() -> RunVerdict:
    """A run against a real server."""
    return run_of(arm_of(passing_cell(), server="sglang 0.5.21, Qwen3.6-35B-A3B-FP8"), label=REAL)


@pytest.fixture
def failing() -> RunVerdict:
    return run_of(arm_of(failing_cell(), control_cell()))


@pytest.fixture
def passing() -> RunVerdict:
    return run_of(arm_of(passing_cell(), control_cell()))


@pytest.fixture
def not_exercised() -> RunVerdict:
    return run_of(arm_of(unexercised_cell()), not_exercised=("arm none, L=193 tail=1: no hit", "decode"))


@pytest.fixture
def two_arms() -> RunVerdict:
    return run_of(
        arm_of(failing_cell("none"), control_cell("none")),
        arm_of(passing_cell("splitk"), control_cell("splitk"), name="splitk"),
    )


@pytest.fixture
def with_baseline() -> RunVerdict:
    return run_of(arm_of(failing_cell(), baseline=True), arm_of(passing_cell("splitk"), name="splitk"))


@pytest.fixture
def interrupted() -> RunVerdict:
    """Everything measured so far was clean."""
    return run_of(
        arm_of(passing_cell()),
        state=INCONCLUSIVE,
        exit_code=130,
        reason="the run did not end by itself (interrupted)",
        status="interrupted",
        partial=True,
        error="interrupted",
        bound="",
    )


@pytest.fixture
def server_gone() -> RunVerdict:
    """Nothing was measured at all."""
    return run_of(
        arm_of(server="not reached", replaced=()),
        state=COULD_NOT_RUN,
        exit_code=3,
        reason="the server does not answer at http://127.0.0.1:1",
        status="failed",
        partial=True,
        error="the server does not answer at http://127.0.0.1:1",
    )


CASES = ("failing", "passing", "not_exercised", "two_arms", "with_baseline", "interrupted", "server_gone")


@pytest.fixture(params=CASES)
def any_verdict(request: pytest.FixtureRequest) -> RunVerdict:
    return request.getfixturevalue(request.param)


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        run_id="20260101-120000-77",
        started="2026-01-01T12:00:00+0000",
        plan=RunPlan(
            name="mine",
            arms=(Arm(name="none"), Arm(name="splitk", guard="splitk")),
            seed=7,
            thresholds=Thresholds(sure=0.8),
        ),
        argv=["/usr/local/bin/fidelity", "run", "--model", "embedded", "--output", "my folder"],
        arms={
            "none": ArmRecord(
                "none",
                1,
                facts={"engine": "fidelity-embedded", "grid": 64, "guards": [], "fault": "split-k-nan"},
                cells=[Cell("L=193 tail=1", "suspect", 193, 1, "given")],
                prompts=["capital/france"],
                tokenizer="the server's",
            )
        },
        python="3.11.9",
        platform="Linux-test",
    )
