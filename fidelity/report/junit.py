"""junit.xml: a suite per arm, a case per cell, so that a CI shows the verdict beside its tests.

A failing cell is a <failure>; a cell that proved nothing (inconclusive, not exercised, could not run) is an
<error>, because it found no fault. In a baseline arm both are <skipped>: it never decides. Where no cell
carries the state of its arm, or no arm that of the run, one more case does: the file never says less than the
exit code.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from fidelity.report import words
from fidelity.report.cells import Scripts, key_of
from fidelity.report.files import write_text
from fidelity.verdicts import (
    COULD_NOT_RUN,
    FAIL,
    NOT_APPLICABLE,
    PASS,
    SHOWN,
    ArmVerdict,
    CellVerdict,
    RunVerdict,
)


def write_junit(path: Path, verdict: RunVerdict, scripts: Scripts | None = None) -> None:
    """`scripts` stand with the cells that they show again. Raises ResultsError when it cannot be written."""
    from junitparser import JUnitXml

    xml = JUnitXml(f"fidelity: {words.readable(verdict.label)}")
    suites = [_arm_suite(verdict, arm, scripts or {}) for arm in verdict.arms]
    if verdict.comparisons:
        suites.append(_comparisons(verdict))
    deciding = [arm.state for arm in verdict.arms if not arm.baseline]
    if verdict.state != PASS and _outcome(verdict.state) not in map(_outcome, deciding):
        case = _case("run", "fidelity.run", verdict.state, verdict.reason, _about_run(verdict))
        suites.append(_suite("run", verdict, [case], seconds=0.0))
    for suite in suites:
        xml.add_testsuite(suite)
    # The library's own totals would put the sum of the cases' times, which are not known, over the suites'.
    xml.tests, xml.failures, xml.errors, xml.skipped = (
        sum(getattr(suite, count) for suite in suites) for count in ("tests", "failures", "errors", "skipped")
    )
    xml.time = sum(suite.time for suite in suites)
    buffer = BytesIO()
    xml.write(buffer, pretty=True)
    write_text(path, buffer.getvalue().decode("utf-8"))


def _arm_suite(verdict: RunVerdict, arm: ArmVerdict, scripts: Scripts) -> Any:
    place = f"fidelity.{arm.name}"
    cases = [
        _case(
            f"{cell.probe} {cell.name} ({cell.kind})",
            place,
            cell.state,
            cell.reason,
            "\n".join([verdict.label, *_about_cell(cell), *_script(cell, scripts)]),
            baseline=arm.baseline,
        )
        for cell in arm.cells
    ]
    if arm.state != PASS and _outcome(arm.state) not in [_outcome(cell.state) for cell in arm.cells]:
        cases.append(_case("arm", place, arm.state, arm.reason, verdict.label, baseline=arm.baseline))
    baseline = ", baseline" if arm.baseline else ""
    suite = _suite(f"arm {arm.name} (guard {arm.guard}{baseline})", verdict, cases, arm.seconds)
    suite.add_property("guard", arm.guard)
    suite.add_property("server", words.readable(arm.server))
    suite.add_property("requests", str(arm.requests))
    suite.add_property("arm_state", arm.state)
    return suite


def _comparisons(verdict: RunVerdict) -> Any:
    cases = [
        _case(
            f"{one.probe} {one.name}",
            "fidelity.compared",
            one.state,
            one.reason,
            "\n".join([verdict.label, *(": ".join(words.compared(row)[:4]) for row in one.rows)]),
        )
        for one in verdict.comparisons
    ]
    return _suite("arms compared", verdict, cases, seconds=0.0)


def _suite(name: str, verdict: RunVerdict, cases: list[Any], seconds: float) -> Any:
    from junitparser import TestSuite

    suite = TestSuite(words.readable(name))
    for key, value in _properties(verdict):
        suite.add_property(key, words.readable(value))
    suite.add_testcases(cases)
    suite.timestamp = verdict.started
    suite.time = seconds
    return suite


def _properties(verdict: RunVerdict) -> Iterator[tuple[str, str]]:
    yield "label", verdict.label
    yield "verdict", words.verdict_line(verdict)
    yield "run_id", verdict.run_id
    yield "target", verdict.target
    yield "version", verdict.version
    yield "seed", str(verdict.seed)
    for name, value in verdict.thresholds.items():
        yield f"thresholds.{name}", f"{value:g}"


def _case(name: str, place: str, state: str, reason: str, text: str, *, baseline: bool = False) -> Any:
    from junitparser import Error, Failure, Skipped, TestCase

    case = TestCase(words.readable(name), classname=words.readable(place))
    outcome = _outcome(state)
    message = words.readable(f"{state}: {reason}")
    if outcome == "skipped" or (baseline and outcome != "passed"):
        result = Skipped(f"a baseline arm never decides; {message}" if baseline else message)
    elif outcome == "failure":
        result = Failure(message, "fail")
    elif outcome == "error":
        result = Error(message, "could not run" if state == COULD_NOT_RUN else "inconclusive")
    else:
        return case
    result.text = "\n".join(words.readable(line) for line in text.split("\n"))
    case.result = [result]
    return case


def _outcome(state: str) -> str:
    return {PASS: "passed", SHOWN: "passed", FAIL: "failure", NOT_APPLICABLE: "skipped"}.get(state, "error")


def _about_cell(cell: CellVerdict) -> Iterator[str]:
    yield f"prompts: {cell.prompts} measured, {cell.exercised} took the path, {cell.corrupt} corrupt"
    if cell.agreement:
        yield f"first token, of {cell.sends} sends: {words.counted(cell.agreement, words.AGREEMENT_ORDER)}"
    yield f"logprobs that are no number: {words.not_numbers(cell)}; {words.counted(cell.faces)}"
    if cell.tails:
        yield f"tails seen: {words.counted(cell.tails)}; cached tokens: {words.counted(cell.cached)}"
    if cell.missed:
        yield f"sends that missed the path: {words.counted(cell.missed)}"
    for figure in cell.figures:
        holds = "holds" if figure.holds else "does not hold"
        gate = f"{words.nats(figure.value)} {figure.relation} {figure.threshold:g}"
        yield f"{figure.name}: {gate} {holds} ({figure.source})"
    yield from map(words.reading, cell.readings)
    yield from cell.notes
    for example in cell.examples:
        yield (
            f"{example.prompt}: cold {words.quoted(example.cold)}, then {words.quoted(example.other)} "
            f"({example.cached_tokens} cached, tail {example.tail}; {example.why})"
        )


def _script(cell: CellVerdict, scripts: Scripts) -> list[str]:
    script = scripts.get(key_of(cell))
    return [] if script is None else ["", "To reproduce it:", script.rstrip()]


def _about_run(verdict: RunVerdict) -> str:
    return "\n".join([verdict.label, f"status: {verdict.status}", verdict.error or ""]).rstrip()
