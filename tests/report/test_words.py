import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.compare import Agreement
from fidelity.report import words
from fidelity.verdicts import RunVerdict


@given(st.text(alphabet=st.characters(), max_size=40))
def test_readable_text_is_one_printable_line(text: str) -> None:
    assert words.readable(text).isprintable()


def test_readable_keeps_other_scripts_and_cuts_at_the_limit() -> None:
    assert words.readable("Île 北京") == "Île 北京"
    assert words.readable("\x1b[31m\n\ud800") == r"\x1b[31m\n\ud800"
    assert words.readable("!" * 100, 20) == "!" * 17 + "..."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (2.3e-5, "2e-5"),
        (-4e-17, "-4e-17"),
        (0.61234, "0.612"),
        (11.24, "11.2"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_nats(value: float, shown: str) -> None:
    assert words.nats(value) == shown


def test_a_rate_limit_is_rounded_away_from_the_comfortable_side(failing: RunVerdict, make_cell) -> None:
    assert words.rate_limit(make_cell()) == "<=9.6%"
    assert words.rate_limit(failing.arms[0].cells[0]) == ">=90%"


@pytest.mark.parametrize(("upper", "shown"), [(0.29, "<=29%"), (0.2901, "<=30%"), (0.01, "<=1%")])
def test_a_round_rate_stays_round(make_cell, upper: float, shown: str) -> None:
    assert words.rate_limit(make_cell(rate_upper=upper)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (4e-14, "~0"),
        (4.4e-5, "4e-5"),
        (0.0771, "0.08"),
        (11.24, "11.2"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_brief_nats(value: float, shown: str) -> None:
    assert words.brief_nats(value) == shown


def test_the_rate_of_a_partly_corrupt_cell_has_both_limits(make_cell) -> None:
    cell = make_cell(corrupt=3, rate_lower=0.02786, rate_upper=0.2386)
    assert words.rate_limit(cell) == "2.7..24%"


def test_a_cell_that_no_prompt_exercised_shows_no_figures(not_exercised: RunVerdict) -> None:
    (cell,) = not_exercised.arms[0].cells
    assert words.rate_limit(cell) == "-"
    assert words.agreeing(cell) == "-"
    assert words.corrupt_prompts(cell) == "-"


def test_why_says_the_rule_or_the_class_with_its_regret() -> None:
    assert words.why(Agreement("broken", math.inf, ("NaN: 1 null", "flat row"))) == "NaN: 1 null; flat row"
    assert words.why(Agreement("hard flip", 3.25)) == "hard flip, regret 3.25 nat"
    assert words.why(Agreement("off-list", 8.125)) == "off-list, regret at least 8.12 nat"


def test_the_verdict_is_one_line(make_verdict, make_arm) -> None:
    verdict = make_verdict(make_arm(), state="could not run", exit_code=3, reason="it ended:\n  its log")
    assert words.verdict_line(verdict) == "COULD NOT RUN (exit 3): it ended: its log"


def test_the_command_line_has_no_path_of_the_program() -> None:
    assert words.command_line(["/opt/x/bin/fidelity", "run", "a b"]) == "fidelity run 'a b'"
    assert words.command_line(["/opt/x/fidelity/__main__.py", "run"]) == "fidelity run"
    assert words.command_line(["run", "--seed", "1"]) == "fidelity run --seed 1"
    assert words.command_line([]) == ""
