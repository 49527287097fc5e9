"""What a kernel check says: kernel.json, report.md and junit.xml in its folder, and lines on the screen."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console

from fidelity import __version__
from fidelity.kernel.verdict import CallVerdict, GuardVerdict, KernelVerdict
from fidelity.kernel.work import Work
from fidelity.report.files import write_text
from fidelity.report.screen import say
from fidelity.report.words import readable
from fidelity.verdicts import COULD_NOT_RUN, FAIL, PASS

STYLES = {PASS: "green", FAIL: "bold red"}
TIMED_AS = {"none": "before", "unsplit": "split disabled", "splitk": "guard"}


def write_all(folder: Path, work: Work, verdict: KernelVerdict, command: str) -> None:
    """Raises ResultsError."""
    data = {"version": __version__, "command": command, "verdict": asdict(verdict), "work": asdict(work)}
    write_text(folder / "kernel.json", json.dumps(_finite(data), indent=1) + "\n")
    write_text(folder / "report.md", "\n".join(_markdown(work, verdict, command)) + "\n")
    write_text(folder / "junit.xml", _junit(verdict))


def print_verdict(console: Console, verdict: KernelVerdict, folder: Path) -> None:
    say(console, f"{verdict.model}: {verdict.label}")
    for guard in verdict.guards:
        say(console, f"guard {guard.guard}: {guard.state}, {guard.reason}", STYLES.get(guard.state, "yellow"))
    for line in _timing_lines(verdict):
        say(console, line)
    for message in verdict.warnings:
        say(console, f"warning: {message}", "yellow")
    say(console, _line(verdict), STYLES.get(verdict.state, "yellow"))
    say(console, f"reports: {folder}")


def _line(verdict: KernelVerdict) -> str:
    return readable(f"{verdict.state.upper()} (exit {verdict.exit_code}): {verdict.reason}")


def _markdown(work: Work, verdict: KernelVerdict, command: str) -> Iterator[str]:
    yield f"# Kernel check of {work.model}"
    yield ""
    yield f"**{_line(verdict)}**"
    yield ""
    yield f"- Operator: {readable(verdict.label)}"
    if verdict.machine:
        yield f"- Versions: {', '.join(map(' '.join, verdict.machine.versions.items()))}"
    yield f"- Predicted for {work.units} compute units; wrong is a relative error above {work.tolerance:g}"
    yield f"- Command: `{readable(command)}` (fidelity {__version__}, seed {work.seed})"
    for message in verdict.warnings:
        yield f"- Warning: {readable(message)}"
    yield ""
    yield "Relative error with new memory full of NaN / of 3e4; `*`: one K tile per split is predicted."
    for guard in verdict.guards:
        yield ""
        yield f"## Guard {guard.guard}: {guard.state}"
        yield ""
        yield guard.reason
        yield ""
        yield from _table(guard)
        if guard.proof:
            yield ""
            yield f"The guard saw {guard.proof.calls} calls and lowered {guard.proof.lowered}."
    lines = _timing_lines(verdict)
    if lines:
        yield ""
        yield "## Time per call"
        yield ""
        yield from (f"- {line}" for line in lines)


def _table(guard: GuardVerdict) -> Iterator[str]:
    sizes = list(dict.fromkeys(call.m for call in guard.calls))
    yield f"| | {' | '.join(f'M {m}' for m in sizes)} |"
    yield f"| --- |{' --- |' * len(sizes)}"
    calls = {(call.tp, call.m): call for call in guard.calls}
    for tp in dict.fromkeys(call.tp for call in guard.calls):
        yield f"| TP{tp} | {' | '.join(_shown(calls[tp, m]) for m in sizes)} |"


def _shown(call: CallVerdict) -> str:
    errors = " / ".join("NaN" if math.isnan(error) else f"{error:.2g}" for error in call.errors.values())
    text = errors or "not run"
    return f"**{text}**{' *' * call.affected}" if call.state == FAIL else f"{text}{' *' * call.affected}"


def _timing_lines(verdict: KernelVerdict) -> list[str]:
    """One for each timed call: before, split disabled, guard."""
    by_call: dict[tuple[int, int], list[str]] = {}
    captured = ", graph replay" if any(one.captured for one in verdict.timings) else ""
    for one in verdict.timings:
        words = f"{TIMED_AS[one.guard]} {one.median:.1f} us ({one.least:.1f} to {one.most:.1f})"
        by_call.setdefault((one.tp, one.m), []).append(words)
    return [f"TP{tp} M {m}{captured}: {', '.join(words)}" for (tp, m), words in by_call.items()]


def _junit(verdict: KernelVerdict) -> str:
    from junitparser import JUnitXml, TestSuite

    xml = JUnitXml(f"fidelity kernel: {readable(verdict.label)}")
    for guard in verdict.guards:
        suite = TestSuite(f"guard {guard.guard}")
        suite.add_property("label", readable(verdict.label))
        suite.add_property("verdict", _line(verdict))
        place = f"fidelity.kernel.{guard.guard}"
        cases = [_case(f"TP{call.tp} M {call.m}", place, call.state, call.reason) for call in guard.calls]
        if guard.state != PASS and guard.state not in [call.state for call in guard.calls]:
            cases.append(_case("guard", place, guard.state, guard.reason))
        suite.add_testcases(cases)
        xml.add_testsuite(suite)
    states = [guard.state for guard in verdict.guards]
    if verdict.state != PASS and verdict.state not in states:
        suite = TestSuite("run")
        suite.add_testcases([_case("run", "fidelity.kernel", verdict.state, verdict.reason)])
        xml.add_testsuite(suite)
    buffer = BytesIO()
    xml.write(buffer, pretty=True)
    return buffer.getvalue().decode("utf-8")


def _case(name: str, place: str, state: str, reason: str) -> Any:
    from junitparser import Error, Failure, TestCase

    case = TestCase(name, classname=place)
    message = readable(f"{state}: {reason}")
    if state == FAIL:
        case.result = [Failure(message, "fail")]
    elif state != PASS:
        case.result = [Error(message, "could not run" if state == COULD_NOT_RUN else "inconclusive")]
    return case


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return value
