from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from fidelity.report.junit import write_junit
from fidelity.verdicts import NOT_APPLICABLE, RunVerdict


@pytest.fixture
def written(tmp_path: Path):
    def write(verdict: RunVerdict) -> JUnitXml:
        path = tmp_path / "junit.xml"
        write_junit(path, verdict)
        return JUnitXml.fromfile(str(path))

    return write


def cases(xml: JUnitXml) -> list[TestCase]:
    return [case for suite in xml for case in suite]


def properties(suite: TestSuite) -> dict[str, str]:
    return {entry.name: entry.value for entry in suite.properties()}


def test_a_failing_cell_is_a_failure_with_its_figures(written, failing: RunVerdict) -> None:
    xml = written(failing)
    assert (xml.tests, xml.failures, xml.errors, xml.skipped) == (2, 1, 0, 0)
    suspect, control = cases(xml)
    (result,) = suspect.result
    assert isinstance(result, Failure)
    assert "30 corrupt prompts of 30" in result.message
    assert "30 measured, 30 took the path, 30 corrupt" in result.text
    assert "1260/1260" in result.text
    assert '"!!!!!!!!!!!!!!!!"' in result.text
    assert control.is_passed
    assert control.name == "resend L=194 tail=2 (control)"


def test_a_passing_run_has_no_results(written, passing: RunVerdict) -> None:
    xml = written(passing)
    assert (xml.tests, xml.failures, xml.errors, xml.skipped) == (2, 0, 0, 0)
    assert all(case.is_passed for case in cases(xml))


def test_not_exercised_is_an_error_and_no_failure(written, not_exercised: RunVerdict) -> None:
    xml = written(not_exercised)
    assert (xml.failures, xml.errors) == (0, 1)
    (result,) = cases(xml)[0].result
    assert isinstance(result, Error)
    assert result.type == "inconclusive"
    assert "no hit" in result.message


def test_not_applicable_is_skipped(written, make_cell, make_run) -> None:
    xml = written(make_run(make_cell(), make_cell(name="other", state=NOT_APPLICABLE)))
    assert (xml.failures, xml.errors, xml.skipped) == (0, 0, 1)


def test_a_baseline_arm_is_skipped_and_keeps_its_text(written, with_baseline: RunVerdict) -> None:
    xml = written(with_baseline)
    assert (xml.tests, xml.failures, xml.errors, xml.skipped) == (2, 0, 0, 1)
    (result,) = cases(xml)[0].result
    assert isinstance(result, Skipped)
    assert "never decides" in result.message
    assert "30 corrupt prompts of 30" in result.message


def test_a_suite_per_arm_with_its_properties_and_time(written, two_arms: RunVerdict) -> None:
    xml = written(two_arms)
    none, splitk = xml
    assert none.name == "arm none (guard none)"
    assert splitk.name == "arm splitk (guard splitk)"
    known = properties(splitk)
    assert known["run_id"] == "20260101-120000-77"
    assert known["thresholds.max_rate"] == "0.1"
    assert known["guard"] == "splitk"
    assert (none.time, splitk.time, xml.time) == (12.5, 12.5, 25.0)
    assert none.timestamp == "2026-01-01T12:00:00+0000"


def test_a_run_without_cells_is_an_error(written, server_gone: RunVerdict) -> None:
    xml = written(server_gone)
    assert xml.failures == 0
    assert xml.errors >= 1
    messages = [result.message for case in cases(xml) for result in case.result]
    assert any(
        "the server does not answer" in message or "nothing was measured" in message for message in messages
    )


def test_an_interrupted_run_of_clean_cells_is_not_green(written, interrupted: RunVerdict) -> None:
    xml = written(interrupted)
    assert (xml.failures, xml.errors) == (0, 1)
    (result,) = cases(xml)[-1].result
    assert "did not end by itself" in result.message


def test_no_outcome_is_greener_than_the_exit_code(written, any_verdict: RunVerdict) -> None:
    xml = written(any_verdict)
    assert (xml.failures + xml.errors == 0) == (any_verdict.exit_code == 0)
    assert (xml.failures > 0) == (any_verdict.exit_code == 10)


def test_no_character_that_xml_forbids_gets_through(written, make_cell, make_run, example) -> None:
    odd = example("odd\x00prompt")
    cell = make_cell(state="fail", reason="bad \x1b", examples=(odd,), missed={"why \x07": 1}, name="L \x0b")
    (case,) = cases(written(make_run(cell)))
    assert case.name == r"resend L \x0b (suspect)"
    assert case.result[0].message == r"fail: bad \x1b"
    assert r"odd\x00prompt" in case.result[0].text
