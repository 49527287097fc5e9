import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fidelity.report.console import print_verdict
from fidelity.verdicts import RunVerdict

DIRECTORY = Path("results/x")


def shown(verdict: RunVerdict, width: int = 80) -> str:
    screen = StringIO()
    print_verdict(Console(file=screen, width=width), verdict, DIRECTORY)
    return screen.getvalue()


def row(text: str, *start: str) -> list[str]:
    """The words of the first line that begins with these."""
    return next(words for line in text.splitlines() if (words := line.split())[: len(start)] == list(start))


def test_the_last_line_is_the_verdict(failing: RunVerdict) -> None:
    assert shown(failing).splitlines()[-1] == (
        "FAIL (exit 10): arm none: 30 corrupt prompts of 30: NaN in 60 sends  report: results/x"
    )


@pytest.mark.parametrize(
    ("case", "start"),
    [
        ("passing", "PASS (exit 0): "),
        ("not_exercised", "INCONCLUSIVE (exit 11): "),
        ("interrupted", "INCONCLUSIVE (exit 130) [partial: interrupted]: "),
        ("server_gone", "COULD NOT RUN (exit 3) [partial: failed]: "),
    ],
)
def test_the_last_line_of_other_runs(case: str, start: str, request: pytest.FixtureRequest) -> None:
    assert shown(request.getfixturevalue(case)).splitlines()[-1].startswith(start)


def test_the_label_comes_first(any_verdict: RunVerdict) -> None:
    assert shown(any_verdict).split("\n")[1] == any_verdict.label


@pytest.mark.parametrize("width", [80, 120])
def test_before_and_after(two_arms: RunVerdict, width: int) -> None:
    text = shown(two_arms, width)
    kind = ["suspect"] if width >= 100 else []
    assert row(text, "L=193", "tail=1") == [
        *("L=193", "tail=1", *kind, "none"),
        *("0/60", "30/30", ">=90%", "inf", "inf..inf", "1260/1260", "fail"),
    ]
    assert row(text, "splitk") == [
        *("splitk", "60/60", "0/30", "<=9.6%", "1e-6", "~0..2e-4", "0/1260", "pass")
    ]


@pytest.mark.parametrize("arm", ["splitk", "retreat", "a name of many words"])
def test_the_table_fits_eighty_columns(make_cell, make_arm, make_verdict, spread, arm: str) -> None:
    widest = make_cell(
        arm=arm,
        state="inconclusive",
        divergences=spread(4.4e-5, 0.077),
        faces={"null": 2460},
        values=2460,
        corrupt=3,
        rate_lower=0.027,
        rate_upper=0.24,
    )
    verdict = make_verdict(make_arm(make_cell()), make_arm(widest, name=arm))
    table = shown(verdict).split("agree: sends")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    for value in ("2.7..24%", "4e-5..0.08", "2460/2460", "inconclusive"):
        assert value in table


def test_garbage_is_readable_and_harmless(failing: RunVerdict) -> None:
    text = shown(failing)
    assert 'capital/france: cold "Paris" -> hit "!!!!!!!!!!!!!!!!"' in text
    assert r"\x1b[31m\x00" in text
    assert "\x1b" not in text
    assert "\x00" not in text


def test_at_most_three_examples_and_five_warnings(make_cell, make_run, example) -> None:
    many = tuple(example(f"prompt{number}") for number in range(9))
    cell = make_cell(state="fail", corrupt=9, examples=many)
    text = shown(make_run(cell, warnings=tuple(f"w{number}" for number in range(7))))
    assert re.findall(r"^prompt\d", text, re.M) == ["prompt0", "prompt1", "prompt2"]
    assert text.count("warning: ") == 5
    assert "... and 2 more warnings in report.md" in text


def test_what_was_not_exercised_and_what_a_pass_bounds(
    not_exercised: RunVerdict, passing: RunVerdict
) -> None:
    assert "not exercised: arm none, L=193 tail=1: no hit\n" in shown(not_exercised)
    assert "this pass says: 0 corrupt prompts of 30: at most 10 % at 95%" in shown(passing)
    assert "this pass says" not in shown(not_exercised)


def test_a_baseline_is_named(with_baseline: RunVerdict) -> None:
    assert "arm none (baseline, never decides): fail" in shown(with_baseline)


def test_no_escape_codes_off_a_terminal_and_no_colour_with_no_color(failing: RunVerdict) -> None:
    assert "\x1b" not in shown(failing)
    coloured, plain = StringIO(), StringIO()
    print_verdict(Console(file=coloured, force_terminal=True, color_system="standard"), failing, DIRECTORY)
    print_verdict(Console(file=plain, force_terminal=True, _environ={"NO_COLOR": "1"}), failing, DIRECTORY)
    assert "\x1b[1;31m" in coloured.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain.getvalue())
