"""Speed on records made by hand: medians, ratios paired by prompt, blocks, and the gate on a slowdown."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging.speed import compare, gate, judge, slowdown
from fidelity.judging.timings import timings
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import RunPlan, Thresholds
from fidelity.stats.bootstrap import Interval
from fidelity.verdicts import CellVerdict, Comparison

LIMITS = Thresholds()
PROMPTS = 6
TOKENS = 11
ARMS = [{"name": "none"}, {"name": "splitk", "guard": "splitk"}]


def plan(allowed: float | None = None, **second: Any) -> RunPlan:
    speed = {"prompts": PROMPTS, "tokens": TOKENS, "max_slowdown": allowed}
    return plans.build({"arms": [ARMS[0], {**ARMS[1], **second}], "probes": ["speed"], "speed": speed})


@pytest.fixture
def block(observation: Callable[..., Observation]) -> Callable[..., list[Observation]]:
    """One block: prompt n takes (n + 1) x 10 ms to a token, `slower` times that; a hit a tenth of it."""

    def make(visit: int = 1, slower: float = 1.0, corrupt: bool = False, **over: Any) -> list[Observation]:
        found: list[Observation] = []

        def add(role: str, cell: str, group: str, **own: Any) -> None:
            given = {"probe": "speed", "visit": visit, "top": [], "tail": None, "expected_cached": None}
            found.append(
                observation(role=role, cell=cell, group=f"{cell}/{group}", **{**given, **own, **over})
            )

        def decode(role: str, cell: str, group: str, step: float, row: int = 0) -> None:
            times = {"first_token": 0.5, "first_count": 1, "latency": 0.5 + step * (TOKENS - 1)}
            ids = list(range(TOKENS))
            add(role, cell, group, output_ids=ids, max_new_tokens=TOKENS, cached_tokens=0, row=row, **times)

        for prompt in range(PROMPTS):
            step = 0.01 * (prompt + 1) * slower
            for role, share, cached in (("cold", 1.0, 0), ("hit", 0.1, 192)):
                time = step * share
                add(role, "cold and hit", f"p{prompt}", first_token=time, latency=time, cached_tokens=cached)
            decode("single", "single", f"p{prompt}", step)
        for wave in range(3):
            for row in range(2):
                decode("wave", "c=2", f"wave{wave}", 0.02 * slower, row)
        faces = {"null": 3} if corrupt else {}
        add("check", "warm-up", "check0", faces=faces, values=9)
        return found

    return make


def compared(plan: RunPlan, first: Sequence[Observation], second: Sequence[Observation]) -> Comparison:
    (one,) = compare(plan, {}, {"none": first, "splitk": second}, LIMITS)
    return one


def rows(comparison: Comparison) -> dict[str, Any]:
    return {row.name: row for row in comparison.rows}


def test_medians_of_each_quantity(block: Any) -> None:
    (cell,) = judge(plan(), plan().arms[0], ArmRecord("none", 1), [*block(1), *block(2, 2.0)], LIMITS)
    found = {reading.name: reading for reading in cell.readings}
    # The geometric mean of a prompt's two blocks is sqrt(1 x 2) times 10 to 60 ms.
    assert found["TTFT cold, median"].value == pytest.approx(35 * math.sqrt(2))
    assert found["TTFT of a cache hit, median"].value == pytest.approx(3.5 * math.sqrt(2))
    assert found["TPOT, median"].value == pytest.approx(35 * math.sqrt(2))
    assert found["TPOT, median"].unit == "ms"
    assert found["TPOT at c=2, median"].value == pytest.approx(20 * math.sqrt(2))
    assert found["TPOT, block 2 over block 1"].value == pytest.approx(2.0)
    assert found["TPOT, median"].low < found["TPOT, median"].value < found["TPOT, median"].high
    assert list(found)[:4] == [
        f"{name}, median" for name in ("TTFT cold", "TTFT of a cache hit", "TPOT", "tokens/s, one request")
    ]
    assert (cell.state, cell.exercised, cell.prompts) == ("pass", 12, 12)
    assert "2 sends to warm up and to fill the cache, discarded" in cell.notes
    assert "blocks: 2, each of 6 prompts of 11 new tokens" in cell.notes


def test_tokens_per_second_counts_to_the_last_token(block: Any) -> None:
    found = timings(block())
    assert found.values["tokens/s, one request"][1, "single/p0"] == pytest.approx(TOKENS / 0.6)
    assert found.values["tokens/s at c=2"][1, "c=2/wave0"] == pytest.approx(2 * TOKENS / 0.7)


def test_the_ratio_is_paired_by_prompt(block: Any) -> None:
    one = compared(plan(), [*block(1), *block(2)], [*block(1, 1.1), *block(2, 1.1)])
    found = rows(one)
    # Prompts differ sixfold; the same prompt on two arms by 10 % exactly.
    for name in ("TTFT cold", "TTFT of a cache hit", "TPOT", "TPOT at c=2"):
        row = found[name]
        assert (row.ratio, row.low, row.high) == pytest.approx((1.1, 1.1, 1.1)), name
    assert (found["TPOT"].first, found["TPOT"].second, found["TPOT"].n) == (
        pytest.approx(35.0),
        pytest.approx(38.5),
        6,
    )
    assert found["tokens/s, one request"].ratio < 1
    assert (one.state, one.figures) == ("shown", ())
    assert "TPOT x 1.100 [1.100, 1.100]" in one.reason


def test_abba_cancels_a_linear_drift_and_says_it(block: Any) -> None:
    # A B B A while the machine slows by a fifth each block; the arms are equally fast.
    first, second = [*block(1, 1.0), *block(2, 1.2**3)], [*block(1, 1.2), *block(2, 1.2**2)]
    one = compared(plan(), first, second)
    assert rows(one)["TPOT"].ratio == pytest.approx(1.0)
    told = {reading.name: reading.value for reading in one.readings}
    assert told["TPOT, ratio in block 1"] == pytest.approx(1.2)
    assert told["TPOT, ratio in block 2"] == pytest.approx(1 / 1.2)
    assert told["none: TPOT, block 2 over block 1"] == pytest.approx(1.2**3)
    assert "TPOT of none moved by +72.8 % between its blocks" in one.reason
    # An estimate whose blocks disagree about the limit decides nothing.
    gated = compared(plan(0.1), first, second)
    assert gated.state == "inconclusive"


@pytest.mark.parametrize(("slower", "state"), [(1.0, "pass"), (1.04, "pass"), (1.2, "fail"), (0.5, "pass")])
def test_the_gate(block: Any, slower: float, state: str) -> None:
    one = compared(plan(0.05), [*block(1), *block(2)], [*block(1, slower), *block(2, slower)])
    assert one.state == state
    assert len(one.figures) == 3
    assert all(figure.holds for figure in one.figures) is (state == "pass")
    assert "a slowdown of 5 % is allowed" in one.reason


def test_a_baseline_is_never_gated(block: Any) -> None:
    slow = [*block(1, 2.0), *block(2, 2.0)]
    assert compared(plan(0.05, baseline=False), block(), slow).state == "fail"
    baseline = compared(plan(0.05, baseline=True), block(), slow)
    assert baseline.state == "shown"


def test_nothing_to_compare_is_no_pass(block: Any) -> None:
    assert compared(plan(0.05), block(), []).state == "inconclusive"
    assert compared(plan(), block(), []).state == "shown"
    # One gated quantity is missing on one arm.
    part = [obs for obs in block(1) if obs.role != "cold"]
    found = compared(plan(0.05), block(), part)
    assert (found.state, "not measured on both arms: TTFT cold" in found.reason) == ("inconclusive", True)


@pytest.mark.parametrize(
    ("ratio", "unit", "slower"),
    [
        (Interval(1.1, 1.0, 1.2, 6), "ms", (0.1, 0.0, 0.2)),
        (Interval(0.8, 0.5, 1.0, 6), "tok/s", (0.25, 0.0, 1.0)),
        (Interval(1.25, 0.0, math.inf, 2), "tok/s", (-0.2, -1.0, math.inf)),
    ],
)
def test_slowdown(ratio: Interval, unit: str, slower: tuple[float, float, float]) -> None:
    found = slowdown(ratio, unit)
    assert (found.value, found.low, found.high) == pytest.approx(slower)


@pytest.mark.parametrize(
    ("low", "high", "blocks", "state"),
    [
        (0.06, 0.09, [0.07, 0.08], "fail"),
        (0.06, 0.09, [0.12, 0.04], "inconclusive"),
        (0.01, 0.05, [0.02, 0.04], "pass"),
        (0.01, 0.04, [-0.1, 0.12], "inconclusive"),
        (0.01, 0.09, [0.02, 0.04], "inconclusive"),
        (math.nan, math.nan, [], "inconclusive"),
    ],
)
def test_gate_limits(low: float, high: float, blocks: list[float], state: str) -> None:
    assert gate(Interval((low + high) / 2, low, high, 6), blocks, 0.05) == state


def test_a_corrupt_arm_is_no_valid_baseline(block: Any) -> None:
    one = compared(plan(), block(corrupt=True), block())
    assert one.reason.endswith(
        "1 of 1 warm-up answers of none are corrupt (NaN: 3 null): its speed is no valid baseline"
    )
    assert "baseline" not in compared(plan(), block(), block()).reason


@pytest.mark.parametrize(
    ("change", "why", "left"),
    [
        ({"error": "the stream broke"}, "the request failed", ()),
        ({"alone": False}, "other requests ran at the same time", ()),
        ({"first_count": TOKENS}, "the stream came in one piece", ("TTFT cold", "tokens/s, one request")),
        ({"output_ids": [1]}, "fewer tokens came than were asked for", ("TTFT cold",)),
        ({"cached_tokens": 0}, "a re-send was not served from the cache", ("TTFT cold", "TPOT")),
        ({"cached_tokens": 64}, "a cold send was served from the cache", ("TTFT of a cache hit", "TPOT")),
        ({"first_token": None}, "no token came", ("tokens/s, one request",)),
    ],
)
def test_what_was_not_timed_is_counted(
    block: Any, change: dict[str, Any], why: str, left: Sequence[str]
) -> None:
    found = timings(block(**change))
    assert found.missed[why] > 0
    assert set(left) <= set(found.values)
    cell: CellVerdict
    (cell,) = judge(plan(), plan().arms[0], ArmRecord("none", 1), block(**change), LIMITS)
    assert cell.state == ("pass" if left else "not exercised")
    assert cell.missed[why] == found.missed[why]


def test_a_second_attempt_counts_in_place_of_the_first(block: Any) -> None:
    first = [obs for obs in block(1, 9.0) if obs.role == "single"]
    again = [obs for obs in block(1, attempt=1) if obs.role == "single"]
    assert timings([*first, *again]).values == timings(again).values
