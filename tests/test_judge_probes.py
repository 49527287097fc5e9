"""How cells of several probes, and comparisons of arms, make the verdict of a run."""

from typing import Any

import pytest

from fidelity import arm_judge
from fidelity import judge as run_judge
from fidelity.judge import judge
from fidelity.manifest import ArmRecord, Manifest
from fidelity.plan import build
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    SHOWN,
    CellVerdict,
    Comparison,
    RunVerdict,
)

FACTS = {"engine": "sglang", "version": "0.5.21", "model": "tiny", "simulated": False}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judge one arm (or two) whose probes came out as given; `compared` as an equivalence of the arms."""

    def run(
        compared: str | None = None, skipped: Any = None, baseline: str | None = None, **states: str
    ) -> RunVerdict:
        def cells(name: str) -> Any:
            def made(plan: Any, arm: Any, *_: Any) -> list[CellVerdict]:
                state = baseline if arm.baseline and baseline else states[name]
                return [CellVerdict(arm.name, name, "M=2", "suspect", state, f"{name}!")]

            return made

        monkeypatch.setattr(arm_judge, "JUDGES", {name: cells(name) for name in states})
        found = [Comparison("equivalence", "apart", ("a", "b"), compared, "so far")] if compared else []
        monkeypatch.setattr(run_judge, "COMPARERS", {"equivalence": lambda *_: found})
        entries = [{"name": "first", "baseline": True}] if baseline else []
        entries.append({"name": "none"})
        plan = build({"probes": [*states, *(skipped or {}), "equivalence"], "arms": entries})
        manifest = Manifest("r", "s", plan, status="complete")
        for entry in entries:
            manifest.arms[entry["name"]] = ArmRecord("none", 1, facts=FACTS, skipped=skipped or {})
        return judge(manifest, [])

    return run


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ({"decode": PASS, "batch": PASS}, PASS),
        ({"decode": PASS, "batch": FAIL}, FAIL),
        ({"decode": INCONCLUSIVE, "batch": FAIL}, FAIL),
        ({"decode": PASS, "batch": INCONCLUSIVE}, INCONCLUSIVE),
        ({"decode": PASS, "batch": NOT_EXERCISED}, INCONCLUSIVE),
        ({"decode": PASS, "batch": NOT_APPLICABLE}, PASS),
        ({"decode": NOT_APPLICABLE, "batch": NOT_APPLICABLE}, INCONCLUSIVE),
        ({"decode": PASS, "speed": PASS}, PASS),
        ({"speed": PASS}, INCONCLUSIVE),
        ({}, INCONCLUSIVE),
    ],
)
def test_the_worst_cell_decides(states: dict[str, str], wanted: str, judged: Any) -> None:
    verdict = judged(**states)
    assert verdict.state == wanted
    if wanted == FAIL:
        assert verdict.reason == "arm none: batch M=2: batch!" or "more cells" in verdict.reason
    if states == {"speed": PASS}:
        assert "decides no fidelity" in verdict.reason


def test_a_probe_that_the_server_cannot_take_is_listed_with_the_reason(judged: Any) -> None:
    verdict = judged(decode=PASS, skipped={"draft": "the server does no speculative decoding"})
    assert verdict.state == PASS
    (cell,) = [cell for cell in verdict.arms[0].cells if cell.probe == "draft"]
    assert (cell.state, cell.reason) == (NOT_APPLICABLE, "the server does no speculative decoding")
    assert "arm none, draft: the server does no speculative decoding" in verdict.not_exercised
    only = judged(skipped={"draft": "the server does no speculative decoding"})
    assert only.state == INCONCLUSIVE


@pytest.mark.parametrize(
    ("cell", "compared", "wanted"),
    [
        (PASS, PASS, PASS),
        (PASS, SHOWN, PASS),
        (PASS, FAIL, FAIL),
        (PASS, INCONCLUSIVE, INCONCLUSIVE),
        (FAIL, PASS, FAIL),
        (INCONCLUSIVE, FAIL, FAIL),
    ],
)
def test_a_comparison_decides_the_run_as_an_arm_does(
    cell: str, compared: str, wanted: str, judged: Any
) -> None:
    verdict = judged(compared, decode=cell)
    assert verdict.state == wanted
    assert verdict.exit_code == {PASS: 0, FAIL: 10, INCONCLUSIVE: 11}[wanted]
    if cell == PASS and wanted != PASS:
        assert verdict.reason == "equivalence, apart: so far"


def test_a_baseline_that_fails_another_probe_does_not_decide(judged: Any) -> None:
    verdict = judged(decode=PASS, baseline=FAIL)
    assert [arm.state for arm in verdict.arms] == [FAIL, PASS]
    assert (verdict.state, verdict.exit_code) == (PASS, 0)
    assert judged(decode=FAIL, baseline=PASS).state == FAIL
