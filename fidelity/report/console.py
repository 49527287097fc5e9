"""What a terminal shows: the run while it runs (`Progress`) and its verdict at the end."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from fidelity.report import cells, words
from fidelity.report.progress import Progress
from fidelity.report.screen import say, text
from fidelity.reproduce.failing import command, failing_cells, first_shown
from fidelity.verdicts import (
    COULD_NOT_RUN,
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    ArmVerdict,
    CellVerdict,
    RunVerdict,
)

__all__ = ["Progress", "print_verdict"]

EXAMPLES = 3
WARNINGS = 5
READINGS = 4
"""Of each cell; the others are in report.md."""
TELLING = ("decode", "draft", "tasks", "speed")
"""Probes whose figures are worth a line of the terminal even where they pass."""
WIDE = 100
"""Columns from which a table has room to spare."""
_STYLES = {
    PASS: "green",
    FAIL: "bold red",
    COULD_NOT_RUN: "bold red",
    INCONCLUSIVE: "yellow",
    NOT_EXERCISED: "yellow",
    NOT_APPLICABLE: "dim",
}


def print_verdict(console: Console, verdict: RunVerdict, directory: Path) -> None:
    """The tables, some examples, what the verdict does not cover; the last line is the verdict itself."""
    say(console, "")
    say(console, verdict.label, "bold")
    say(console, "")
    if any(cell.probe == "resend" for arm in verdict.arms for cell in arm.cells):
        console.print(_table(verdict, console.width))
        say(console, _LEGEND, "dim")
        say(console, "")
    _say_other_paths(console, verdict)
    _say_comparisons(console, verdict)
    for arm in verdict.arms:
        baseline = " (baseline, never decides)" if arm.baseline else ""
        say(
            console,
            f"arm {arm.name}{baseline}: {arm.state}: {arm.reason}",
            _STYLES.get(arm.state, ""),
        )
        say(
            console,
            f"  cold answers right {arm.cold_right}/{arm.cold_known}; "
            f"{arm.requests} requests, {arm.failed_requests} failed, {arm.seconds:.1f} s",
            "dim",
        )
        _say_hypothesis(console, arm)
    _say_examples(console, verdict)
    for item in verdict.not_exercised:
        say(console, f"not exercised: {item}", "yellow")
    warnings = words.all_warnings(verdict)
    for warning in warnings[:WARNINGS]:
        say(console, f"warning: {warning}", "yellow")
    if len(warnings) > WARNINGS:
        say(console, f"... and {len(warnings) - WARNINGS} more warnings in report.md", "yellow")
    failing = first_shown(failing_cells(verdict))
    if failing is not None:
        say(console, f"reproduce: {command(directory, failing, verdict)}")
    if verdict.bound:
        say(console, f"this pass says: {verdict.bound}")
    say(console, f"{words.verdict_line(verdict)}  report: {directory}", _STYLES.get(verdict.state, ""))


_LEGEND = """\
agree: sends with the cold first token; corrupt: prompts that took the path;
rate: one-sided limit for corrupt prompts; KL, JSD: nats, median (~0: < 1e-6);
NaN: logprobs that are no number, of those looked at"""


def _say_other_paths(console: Console, verdict: RunVerdict) -> None:
    """The cells of the other probes, each with its first readings under it, and the maps of a sweep."""
    rows = [cell for row in cells.side_by_side(verdict, resend=False) for cell in row if cell is not None]
    if not rows:
        return
    several = len(verdict.arms) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("probe", "cell", *(["arm"] if several else [])):
        table.add_column(heading, overflow="fold")
    for heading in ("corrupt", "NaN"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for cell in rows:
        named = [cell.probe, cell.name, *([cell.arm] if several else [])]
        state = text(cell.state, _STYLES.get(cell.state, ""))
        table.add_row(*map(text, [*named, words.corrupt_prompts(cell), words.not_numbers(cell)]), state)
    console.print(table)
    for cell in rows:
        said = "; ".join(words.reading(one) for one in cell.readings[:READINGS])
        arm = f", arm {cell.arm}" if several else ""
        if said and (cell.state != PASS or cell.probe in TELLING):
            say(console, f"{cell.probe} {cell.name}{arm}: {said}", "dim")
        if cell.probe == "sweep":
            say(console, f"{cell.probe} {'; '.join(cell.notes)}{arm}")
    say(console, "")


def _say_hypothesis(console: Console, arm: ArmVerdict) -> None:
    """What would best explain a failing arm; the others are in report.md."""
    if arm.state != FAIL or not arm.hypotheses:
        return
    tied = [one.name for one in arm.hypotheses if one.rank == 1]
    say(console, f"  hypothesis, no finding: {' or '.join(tied)}", "bold")
    first = arm.hypotheses[0]
    for line in (*first.support[:1], *(first.against[:1] or (f"next: {first.next}",))):
        say(console, f"    {line}", "dim")


def _say_comparisons(console: Console, verdict: RunVerdict) -> None:
    for one in verdict.comparisons:
        say(console, f"{one.probe}, {one.name}: {one.state}: {one.reason}", _STYLES.get(one.state, ""))
        if not one.rows:
            continue
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 2), header_style="bold")
        table.add_column("")
        for heading in (*(one.headings or one.arms), "ratio [95 %]", "n"):
            table.add_column(heading, justify="right")
        for row in one.rows:
            table.add_row(*map(text, words.compared(row)))
        console.print(table)
        for value in one.readings:
            say(console, f"  {words.reading(value)}", "dim")
        say(console, "")


def _table(verdict: RunVerdict, width: int) -> Table:
    """Rows are cells, those of two arms under each other: before and after. A narrow one has no kinds."""
    table = Table(box=None, pad_edge=False, padding=(0, 2 if width >= WIDE else 1, 0, 0), header_style="bold")
    named = ["cell", *(["kind"] if width >= WIDE else []), *(["arm"] if len(verdict.arms) > 1 else [])]
    for heading in named:
        table.add_column(heading, overflow="fold")
    for heading in ("agree", "corrupt", "rate", "KL >=", "JSD", "NaN"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for row in cells.side_by_side(verdict):
        present = [cell for cell in row if cell is not None]
        for number, cell in enumerate(present):
            names = {"cell": cell.name, "kind": cell.kind} if number == 0 else {}
            names["arm"] = cell.arm
            left = [names.get(heading, "") for heading in named]
            state = text(cell.state, _STYLES.get(cell.state, ""))
            table.add_row(*map(text, [*left, *_figures(cell)]), state)
    return table


def _figures(cell: CellVerdict) -> list[str]:
    kl = jsd = "-"
    if cell.divergences is not None:
        low, high = cell.divergences.jsd_lower.median, cell.divergences.jsd_upper.median
        kl = words.brief_nats(cell.divergences.kl_lower.median)
        jsd = f"{words.brief_nats(low)}..{words.brief_nats(high)}"
    return [
        words.agreeing(cell),
        words.corrupt_prompts(cell),
        words.rate_limit(cell),
        kl,
        jsd,
        words.not_numbers(cell),
    ]


def _say_examples(console: Console, verdict: RunVerdict) -> None:
    for cell, example in cells.examples(verdict, EXAMPLES):
        cold, other = words.quoted(example.cold, 40), words.quoted(example.other, 40)
        path = "cold again" if cell.kind == "floor" else "hit"
        cached = f"{example.cached_tokens} cached, {example.tail} recomputed"
        say(console, f"{example.prompt}: cold {cold} -> {path} {other}")
        say(console, f"  arm {cell.arm}, {cell.name}, {cached}: {example.why}", "dim")
