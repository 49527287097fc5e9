"""From answers to a verdict; what was not shown is never a pass."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from fidelity.kernel import report
from fidelity.kernel.harness import run
from fidelity.kernel.verdict import KernelVerdict, judge
from fidelity.kernel.work import Check, Done, Failed, GuardProof, Machine, line, load, read


@pytest.fixture
def played(work: Any, numpy_operator: Any, tmp_path: Path) -> Any:
    """Work run with a NumPy operator, judged."""

    def play(operator: dict[str, Any] | None = None, **given: Any) -> KernelVerdict:
        asked = work(**given)
        return judge(asked, list(run(asked, numpy_operator(**(operator or {})), tmp_path)))

    return play


def test_the_fault_fails_and_the_guard_passes(played: Any) -> None:
    verdict = played()
    assert (verdict.state, verdict.exit_code) == ("fail", 10)
    assert verdict.reason == "guard none: wrong at TP1 M 1; TP2 M 1, 2, of 14 calls"
    none, splitk = verdict.guards
    assert (none.state, splitk.state) == ("fail", "pass")
    assert splitk.reason == "all 14 calls right (largest relative error 0.000)"
    assert verdict.warnings == ()
    assert {(call.tp, call.m) for call in none.calls if call.state == "fail"} == {
        (call.tp, call.m) for call in none.calls if call.affected
    }


def test_the_guard_alone_passes(played: Any) -> None:
    verdict = played(guards=("splitk",))
    assert (verdict.state, verdict.exit_code) == ("pass", 0)
    assert verdict.label == "NumPy operator on CPU; SIMULATED, not an AMD result"


def test_a_clean_operator_passes_and_says_that_the_prediction_failed(played: Any) -> None:
    verdict = played({"clean": True})
    assert (verdict.state, verdict.exit_code) == ("pass", 0)
    (warning,) = verdict.warnings
    assert warning.startswith("predicted and not found at TP1 M 1; TP2 M 1, 2: ")


def test_what_is_wrong_outside_the_prediction_is_told(played: Any) -> None:
    verdict = played({"wrong_at": (8,), "clean": True}, guards=("none",))
    assert verdict.exit_code == 10
    assert any("not predicted: TP1 M 8; TP2 M 8" in message for message in verdict.warnings)


def test_memory_that_cannot_be_filled_proves_nothing(played: Any) -> None:
    verdict = played({"fills": False, "clean": True}, guards=("none",))
    assert (verdict.state, verdict.exit_code) == ("inconclusive", 11)
    assert "not exercised at TP1 M 1, 2, 3, 4, 8, 16, 32" in verdict.reason
    assert "took no memory that was filled (nan, large)" in verdict.guards[0].calls[0].reason


def test_a_guard_that_is_never_called_is_no_guard(played: Any) -> None:
    verdict = played({"deaf": True, "clean": True}, guards=("splitk",), repeats=0)
    assert (verdict.state, verdict.exit_code) == ("could not run", 3)
    assert "nothing shows that it was active" in verdict.reason


def test_other_compute_units_than_predicted_are_told(played: Any) -> None:
    verdict = played({"units": 304})
    assert any("this GPU has 304: give --cu 304" in message for message in verdict.warnings)


def test_errors_of_the_guard_are_no_pass(work: Any) -> None:
    asked = work(guards=("splitk",))
    good = [Check(c.tp, c.m, "splitk", fill, True, 0.0) for c in asked.cases for fill in ("nan", "large")]
    proof = GuardProof("splitk", "x", 5, 1, {}, ["choosing a split: KeyError\n  at x"])
    machine = Machine("o", "d", stand_in=False)
    verdict = judge(asked, [machine, *good, proof, Done(1.0)])
    assert verdict.exit_code == 3
    assert "the guard met errors: choosing a split: KeyError" in verdict.reason
    assert judge(asked, [machine, *good, Done(1.0)]).exit_code == 3
    well = GuardProof("splitk", "x", 5, 1, {}, [])
    assert judge(asked, [machine, *good, well, Done(1.0)]).exit_code == 0
    assert judge(asked, [machine, *good[1:], well, Done(1.0)]).exit_code == 11  # one fill is not both
    worse = [Check(1, 1, "splitk", "nan", True, math.nan), *good[1:]]
    assert judge(asked, [machine, *worse, well, Done(1.0)]).exit_code == 10


def test_an_early_end_is_no_pass_but_a_proof_stays(work: Any) -> None:
    asked = work(guards=("none",))
    machine = Machine("o", "d", stand_in=False)
    good = [Check(c.tp, c.m, "none", fill, True, 0.0) for c in asked.cases for fill in ("nan", "large")]
    verdict = judge(asked, [machine, *good], "exit code 139")
    assert (verdict.exit_code, verdict.reason) == (3, "the operator's process ended early: exit code 139")
    assert judge(asked, [], None).exit_code == 3
    failed = judge(asked, [Failed("torch cannot be imported", "install it")], "exit code 3")
    assert (failed.exit_code, failed.reason) == (3, "torch cannot be imported; install it")
    wrong = [machine, Check(1, 1, "none", "nan", True, math.inf)]
    assert judge(asked, wrong, "exit code 139").exit_code == 10


@pytest.mark.parametrize("operator", [{}, {"clean": True}, {"fills": False, "clean": True}, {"deaf": True}])
def test_reports_never_say_less_than_the_exit_code(
    operator: dict[str, Any], played: Any, work: Any, tmp_path: Path
) -> None:
    verdict = played(operator)
    report.write_all(tmp_path, work(), verdict, "fidelity kernel")
    data = json.loads((tmp_path / "kernel.json").read_text())
    assert data["verdict"]["exit_code"] == verdict.exit_code
    xml = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    bad = sum(suite.failures + suite.errors for suite in xml)
    assert (bad == 0) == (verdict.exit_code == 0)
    text = (tmp_path / "report.md").read_text()
    assert f"(exit {verdict.exit_code})" in text
    assert "SIMULATED, not an AMD result" in text


def test_the_report_shows_errors_predictions_and_times(played: Any, work: Any, tmp_path: Path) -> None:
    report.write_all(tmp_path, work(), played(), "fidelity kernel")
    text = (tmp_path / "report.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| TP1")]
    assert rows[0].startswith("| TP1 | **NaN / ")
    assert rows[0].count("*") == 5  # two pairs of bold, one prediction
    assert rows[1].startswith("| TP1 | ")
    assert "NaN" not in rows[1]
    assert "before 2.0 us (1.0 to 3.0), split disabled 2.0 us (1.0 to 3.0), guard 2.0 us" in text
    assert "lowered" in text


def test_an_early_end_has_a_case_of_its_own(work: Any, tmp_path: Path) -> None:
    asked = work(guards=("none",))
    verdict = judge(asked, [Failed("no GPU")], "exit code 3")
    report.write_all(tmp_path, asked, verdict, "fidelity kernel")
    xml = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    run_suite = next(suite for suite in xml if suite.name == "run")
    assert run_suite.errors == 1


def test_work_and_answers_come_back_as_they_were(work: Any, tmp_path: Path) -> None:
    asked = work()
    asked.save(tmp_path / "work.json")
    assert load(tmp_path / "work.json") == asked
    answers = [Machine("o", "d", stand_in=True), Check(1, 1, "none", "large", True, math.inf), Done(1.5)]
    (tmp_path / "a.jsonl").write_text("".join(map(line, answers)) + '{"kind": "Che')
    assert list(read(tmp_path / "a.jsonl")) == answers
    assert list(read(tmp_path / "none.jsonl")) == []
