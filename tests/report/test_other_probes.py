"""Cells of probes other than resend, their readings and maps, and the arms compared, in every output."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml
from rich.console import Console

from fidelity.manifest import Manifest
from fidelity.report import words
from fidelity.report.console import print_verdict
from fidelity.report.junit import write_junit
from fidelity.report.markdown import render
from fidelity.report.summary import read_summary, write_summary
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PASS,
    SHOWN,
    CellVerdict,
    Compared,
    Comparison,
    Figure,
    Reading,
    RunVerdict,
)

K3 = Reading("k3 score, mean", 1.6e-3, "nat", 1.1e-3, 2.2e-3)


def cell(probe: str, name: str, state: str = PASS, arm: str = "none", **given: Any) -> CellVerdict:
    return CellVerdict(arm=arm, probe=probe, name=name, kind="suspect", state=state, reason="why", **given)


@pytest.fixture
def verdict(make_arm: Callable[..., Any], make_cell: Callable[..., Any], make_verdict: Any) -> RunVerdict:
    rated = {"prompts": 8, "exercised": 8, "rate_upper": 0.31, "values": 2048}
    broken = {**rated, "corrupt": 8, "rate_lower": 0.69, "rate_upper": 1.0, "faces": {"null": 2032}}
    before = [
        make_cell(),
        cell("decode", "T=0", FAIL, readings=(Reading("NaN tokens", 2032.0), K3), **broken),
        cell("sweep", "from 192", notes=("from 192: X..", "corrupt tails: 1")),
        cell("draft", "draft", NOT_APPLICABLE),
    ]
    after = [
        make_cell("splitk"),
        cell("decode", "T=0", arm="splitk", readings=(K3,), **rated),
        cell("batch", "M=2", arm="splitk", readings=(Reading("rows", 6.0),), **rated),
    ]
    rows = (
        Compared("TPOT", "ms", 3.23, 2.13, 0.659, 0.61, 0.7, 8),
        Compared("accept rate", "", 0.0, 0.6, float("nan"), float("nan"), float("nan"), 8),
    )
    gate = Figure("slowdown", 0.2, "<=", 0.05, "speed.max_slowdown", False)
    compared = (
        Comparison("speed", "splitk against none", ("none", "splitk"), SHOWN, "faster", rows),
        Comparison("equivalence", "apart", ("none", "splitk"), FAIL, "too far", (), (gate,), (K3,)),
    )
    arms = make_arm(*before), make_arm(*after, name="splitk")
    return make_verdict(*arms, comparisons=compared)


def shown(verdict: RunVerdict) -> str:
    screen = StringIO()
    print_verdict(Console(file=screen, width=100), verdict, Path("results/x"))
    return screen.getvalue()


def line(text: str, *start: str) -> list[str]:
    return next(words for row in text.splitlines() if (words := row.split())[: len(start)] == list(start))


def test_the_terminal_shows_each_cell_of_each_arm(verdict: RunVerdict) -> None:
    text = shown(verdict)
    assert line(text, "decode", "T=0", "none") == ["decode", "T=0", "none", "8/8", "2032/2048", "fail"]
    assert line(text, "decode", "T=0", "splitk") == ["decode", "T=0", "splitk", "0/8", "0/2048", "pass"]
    # No rate is judged here: no share of corrupt answers either.
    assert line(text, "draft", "draft") == ["draft", "draft", "none", "-", "-", "not", "applicable"]
    assert "decode T=0, arm none: NaN tokens 2032; k3 score, mean 0.0016 [0.0011, 0.0022] nat" in text
    assert "rows 6" not in text, "a passing batch needs no line of its own"
    assert "sweep from 192: X..; corrupt tails: 1, arm none" in text
    assert text.count("L=193 tail=1") == 1


def test_the_terminal_shows_the_arms_compared(verdict: RunVerdict) -> None:
    text = shown(verdict)
    assert "speed, splitk against none: shown: faster" in text
    assert line(text, "TPOT,", "ms") == ["TPOT,", "ms", "3.23", "2.13", "0.659", "[0.61,", "0.7]", "8"]
    assert line(text, "accept", "rate") == ["accept", "rate", "0", "0.6", "-", "8"]
    assert "equivalence, apart: fail: too far" in text


def test_markdown_has_every_reading_and_figure(verdict: RunVerdict, manifest: Manifest) -> None:
    text = render(verdict, manifest)
    assert "| decode | T=0 | suspect | 8/8 | 8/8 | >=69% | 2032/2048 | fail |" in text
    for said in ("- k3 score, mean 0.0016 [0.0011, 0.0022] nat", "- rows 6", "      from 192: X.."):
        assert said in text
    assert "## Arms compared" in text
    assert "| TPOT, ms | 3.23 | 2.13 | 0.659 [0.61, 0.7] | 8 |" in text
    assert "| splitk against none | equivalence apart | slowdown | 0.2 | <= 0.05 | no |" in text


def test_junit_has_a_case_for_each(verdict: RunVerdict, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_junit(path, verdict)
    suites = {suite.name: list(suite) for suite in JUnitXml.fromfile(str(path))}
    arm, compared = suites["arm none (guard none)"], suites["arms compared"]
    outcome = {case.name: [type(result).__name__ for result in case.result] for case in (*arm, *compared)}
    assert outcome["decode T=0 (suspect)"] == ["Failure"]
    assert outcome["draft draft (suspect)"] == ["Skipped"]
    assert outcome["speed splitk against none"] == []
    assert outcome["equivalence apart"] == ["Failure"]
    assert "NaN tokens 2032" in next(case for case in arm if "decode" in case.name).result[0].text


def test_the_summary_can_be_read_again(verdict: RunVerdict, manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, verdict, manifest)
    again = read_summary(path)
    assert again.arms[0].cells[1].readings == verdict.arms[0].cells[1].readings
    assert again.comparisons[0].rows[0] == verdict.comparisons[0].rows[0]
    assert json.loads(path.read_text())["verdict"]["comparisons"][0]["rows"][1]["ratio"] == "nan"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Reading("tokens", 2048.0), "tokens 2048"),
        (Reading("share", 0.25), "share 0.25"),
        (Reading("k3", 1.6e-5, "nat"), "k3 2e-5 nat"),
        (Reading("k3", float("nan"), "nat"), "k3 nan nat"),
        (Reading("KL", float("inf"), "nat"), "KL inf nat"),
    ],
)
def test_readings_in_words(value: Reading, said: str) -> None:
    assert words.reading(value) == said


def test_an_inconclusive_comparison_is_an_error_in_junit(
    make_verdict: Any, make_arm: Any, make_cell: Any, tmp_path: Path
) -> None:
    one = Comparison("equivalence", "apart", ("a", "b"), INCONCLUSIVE, "too few")
    path = tmp_path / "junit.xml"
    write_junit(path, make_verdict(make_arm(make_cell()), comparisons=(one,)))
    assert JUnitXml.fromfile(str(path)).errors == 1
