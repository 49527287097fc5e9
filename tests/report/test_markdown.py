import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.manifest import Manifest
from fidelity.report.markdown import code, plain, render, write_markdown
from fidelity.verdicts import RunVerdict


def row(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [entry.strip() for entry in re.split(r"(?<!\\)\|", line)[1:-1]]


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def test_the_verdict_in_words_and_the_label_come_first(failing: RunVerdict, manifest: Manifest) -> None:
    lines = render(failing, manifest).splitlines()
    assert lines[0] == "# FAIL (exit 10): arm none: 30 corrupt prompts of 30: NaN in 60 sends"
    assert lines[2] == "**SIMULATED: embedded engine, not AMD hardware**"


def test_the_counts_of_a_cell_are_exact(failing: RunVerdict, manifest: Manifest) -> None:
    cell = row(section(render(failing, manifest), "Arm none"), "L=193 tail=1")
    assert cell[1:6] == ["suspect", "30/30", "30/30", "0/60", ">=90%"]
    assert cell[6] == "inf / inf (60 of 60 not finite)"
    assert cell[7] == "0.9991, nan"
    assert cell[9:] == ["1260/1260", "1 (60)", "192 (60)", "fail"]


def test_finite_divergences_show_median_and_maximum(passing: RunVerdict, manifest: Manifest) -> None:
    cell = row(section(render(passing, manifest), "Arm none"), "L=193 tail=1")
    assert cell[5] == "<=9.6%"
    assert cell[6:10] == ["1e-6 / 3e-5", "0.9991, 0.9990", "3e-7..2e-4 / 8e-6..4e-4", "0/1260"]


def test_two_arms_stand_side_by_side(two_arms: RunVerdict, manifest: Manifest) -> None:
    table = section(render(two_arms, manifest), "Before and after")
    assert row(table, "L=193 tail=1") == [
        *("L=193 tail=1", "suspect"),
        *("0/60", "30/30", "inf", "fail"),
        *("60/60", "0/30", "1e-6", "pass"),
    ]


def test_one_arm_has_no_before_and_after(failing: RunVerdict, manifest: Manifest) -> None:
    assert "Before and after" not in render(failing, manifest)


def test_every_table_row_has_as_many_cells_as_its_header(any_verdict: RunVerdict, manifest: Manifest) -> None:
    width = None
    for line in render(any_verdict, manifest).splitlines():
        if not line.startswith("|"):
            width = None
            continue
        count = len(re.findall(r"(?<!\\)\|", line))
        assert width in (None, count), line
        width = count


def test_examples_are_readable(failing: RunVerdict, manifest: Manifest) -> None:
    text = render(failing, manifest)
    assert "  - cold: `Paris`\n  - hit: `!!!!!!!!!!!!!!!!`" in text
    assert "\x1b" not in text
    assert r"``\x1b[31m\x00|`*<b>\ud800 niestety\nsvp``" in text


def test_what_was_not_exercised_is_listed_before_the_arms(
    not_exercised: RunVerdict, manifest: Manifest
) -> None:
    text = render(not_exercised, manifest)
    assert "- arm none, L=193 tail=1: no hit" in section(text, "Not exercised")
    assert text.index("## Not exercised") < text.index("## Arm none: inconclusive")
    cell = row(text, "L=193 tail=1")
    assert cell[2:9] == ["0/30", "-", "-", "-", "-", "-", "-"]
    assert "sends that missed the path: no hit: cached_tokens 0 instead of 192 (60)" in text


def test_thresholds_say_where_they_come_from(failing: RunVerdict, manifest: Manifest) -> None:
    text = section(render(failing, manifest), "Thresholds")
    assert row(text, "max_rate") == ["max_rate", "0.1", "default"]
    assert row(text, "sure") == ["sure", "0.8", "plan 'mine'"]
    rejudged = replace(failing, thresholds={**failing.thresholds, "sure": 0.7})
    text = section(render(rejudged, manifest), "Thresholds")
    assert row(text, "sure") == ["sure", "0.7", "chosen after the run"]
    text = section(render(failing, manifest), "Thresholds")
    assert row(text, "none")[3:] == ["0.905", "<= 0.1", "no", "thresholds.max_rate"]


def test_how_to_repeat(failing: RunVerdict, manifest: Manifest) -> None:
    text = section(render(failing, manifest), "How to repeat it")
    assert "    fidelity run --model embedded --output 'my folder'\n" in text
    assert "Seed 7" in text
    assert f"fidelity {manifest.version}" in text


def test_warnings_server_and_baseline(with_baseline: RunVerdict, manifest: Manifest) -> None:
    text = render(with_baseline, manifest)
    assert "- arm none: other traffic can hide a one-token fault" in section(text, "Warnings")
    assert "never decides the run" in section(text, "Arm none")
    assert "never decides the run" not in section(text, "Arm splitk")
    assert "- the server says: grid 64, fault split-k-nan" in section(text, "Arm none")
    assert "prompts replaced from the reserve (1): classifier/spam" in text


def test_a_broken_off_run_says_so(server_gone: RunVerdict, manifest: Manifest) -> None:
    text = render(server_gone, manifest)
    assert text.startswith("# COULD NOT RUN (exit 3) [partial: failed]")
    assert "The run did not go to its end: the server does not answer" in text
    assert "Nothing was measured." in section(text, "Arm none")


def test_a_pass_says_what_it_bounds(passing: RunVerdict, manifest: Manifest) -> None:
    assert "What this pass says: 0 corrupt prompts of 30: at most 10 % at 95%." in render(passing, manifest)


@given(st.text(min_size=1, max_size=30))
def test_a_code_span_ends_where_its_text_ends(text: str) -> None:
    span = code(text)
    fence = re.match("`+", span)
    assert fence is not None
    assert span.endswith(fence[0])
    inner = span[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inner)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a|b", r"a\|b"), ("<b>x", r"\<b>x"), ("n <= 3", "n <= 3"), ("*x*", r"\*x\*"), ("a\nb", r"a\\nb")],
)
def test_plain_text_stays_text(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_it_is_written_as_rendered(tmp_path: Path, failing: RunVerdict, manifest: Manifest) -> None:
    path = tmp_path / "report.md"
    write_markdown(path, failing, manifest)
    assert path.read_text(encoding="utf-8") == render(failing, manifest)
