"""The mutation table as text and as Markdown."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fidelity.selftest.catalogue import OUT_OF_REACH
from fidelity.selftest.machine import version_of
from fidelity.selftest.row import CORRUPT, MUST_FAIL, Group
from fidelity.selftest.run import Outcome
from fidelity.selftest.summary import ENOUGH, NOTHING, Line, confusion

HEADS = ("server", "stands for", "seen by", "verdict", "requests", "seconds", "first diagnosis", "least rate")
SIMULATED = (
    "SIMULATED: the embedded engine, simulated faults in a small model in NumPy; not a result of any real "
    "server or GPU."
)

TITLES: dict[Group, str] = {
    "fault": "Faults, which must fail",
    "blind pair": "Blind pairs: cold and hit share the fault",
    "reference": "Needs --reference: held against a healthy server's run of the same plan, must fail",
    "vacuous": "Vacuous servers, which must be inconclusive for the reason given",
    "control": "Negative controls, which must pass",
}


def totals(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> list[str]:
    """What it all comes to, a sentence each."""
    return list(_totals(lines, outcomes))


def as_text(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> str:
    """Columns for a terminal, then the totals and what was not as it must be."""
    body = [_cells(line) for line in lines]
    widths = [max(len(row[at]) for row in (HEADS, *body)) for at in range(len(HEADS))]

    def shown(row: Sequence[str]) -> str:
        return "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()

    text = [SIMULATED, "", shown(HEADS)]
    for title, group in _grouped(lines):
        text += ["", f"{title}:", *(shown(_cells(line)) for line in group)]
    text += ["", "Out of reach of one embedded server:"]
    text += [f"{number}  {what}: {why}" for number, what, why in OUT_OF_REACH]
    return "\n".join([*text, "", *totals(lines, outcomes), *_wrong(lines)]) + "\n"


def as_markdown(lines: Sequence[Line], outcomes: Sequence[Outcome], command: str) -> str:
    """The table, the totals, and the confusion table of the diagnoses, with the command that made them."""
    text = ["# What the probes catch", "", SIMULATED, "", "```sh", command, "```", "", *_made(outcomes), ""]
    text += [f"- {line}" for line in (*totals(lines, outcomes), *_wrong(lines))]
    for title, group in _grouped(lines):
        text += ["", f"## {title}", "", _piped(HEADS), _piped(["---"] * len(HEADS))]
        text += [_piped(_cells(line)) for line in group]
    text += ["", "## Out of reach of one embedded server", "", _piped(("stands for", "what", "why"))]
    text += [_piped(["---"] * 3), *(_piped(row) for row in OUT_OF_REACH)]
    text += [
        "",
        "## Diagnoses",
        "",
        "Runs at rate 1, by the first hypothesis that is right and the one given.",
        "",
    ]
    return "\n".join([*text, *_confusion(confusion(lines, outcomes))]) + "\n"


def _totals(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> Iterator[str]:
    for group, said in (
        ("fault", "faults caught"),
        ("blind pair", "blind pairs caught or named"),
        ("reference", "faults caught against a reference"),
        ("vacuous", "vacuous servers inconclusive"),
        ("control", "negative controls passed"),
    ):
        own = [line for line in lines if line.row.group == group]
        if own:
            held, runs = sum(line.held for line in own), sum(line.runs for line in own)
            yield f"{said}: {held} of {runs} runs of {len(own)} servers"
    found = confusion(lines, outcomes)
    faults = {expected: given for expected, given in found.items() if expected != NOTHING}
    if faults:
        right = sum(given[expected] for expected, given in faults.items())
        runs = sum(given.total() for given in faults.values())
        yield f"diagnoses right: {right} of {runs} runs of faults ({right / runs * 100:.0f} %)"
    if NOTHING in found:
        given = found[NOTHING]
        yield f"healthy servers without a diagnosis: {given[NOTHING]} of {given.total()} runs"


def _wrong(lines: Sequence[Line]) -> list[str]:
    return [
        f"not as it must be: {line.row.name}, {len(line.wrong)} of {line.runs}: {line.wrong[0]}"
        for line in lines
        if line.wrong
    ]


def _grouped(lines: Sequence[Line]) -> Iterator[tuple[str, list[Line]]]:
    for group, title in TITLES.items():
        own = [line for line in lines if line.row.group == group]
        if own:
            yield title, own


def _cells(line: Line) -> tuple[str, ...]:
    row = line.row
    asked = row.diagnosis and row.group in MUST_FAIL
    right = "" if not asked or line.runs == 1 else f" ({line.right} of {line.runs} right)"
    mark = " (not the right one)" if asked and line.runs == 1 and not line.right else ""
    return (
        row.name,
        ", ".join(row.catalogue) or "-",
        line.seen if row.group != "control" else "-",
        _counted(line.verdicts, line.runs),
        str(line.requests),
        f"{line.seconds:.1f}",
        f"{line.diagnosis}{right}{mark}",
        _rate(line),
    )


def _counted(verdicts: Mapping[str, int], runs: int) -> str:
    common = Counter(verdicts).most_common()
    if len(common) == 1 and runs == 1:
        return common[0][0]
    return ", ".join(f"{state} {count}" for state, count in common)


def _rate(line: Line) -> str:
    """The smallest rate caught, with what became of the next smaller one, under which none was run."""
    if not line.row.takes_rate or len(line.rates) == 1:
        return "-" if not line.row.takes_rate else "1" if line.smallest else "not at 1"
    least = line.smallest
    missed = [rate for rate in sorted(line.rates, reverse=True) if least is None or rate < least]
    said = "none" if least is None else f"{least:g}"
    if missed:
        caught, runs = line.rates[missed[0]]
        said += f" (at {missed[0]:g}: {caught} of {runs}; not run below)"
    return said


def _confusion(found: Mapping[str, Counter[str]]) -> Iterator[str]:
    given = list(dict.fromkeys([*found, *(name for row in found.values() for name in row)]))
    yield _piped(["right, down; given, across", *given])
    yield _piped(["---"] * (len(given) + 1))
    for expected, counts in found.items():
        yield _piped([expected, *(str(counts[name]) if counts[name] else "" for name in given)])


def _made(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """By what and where, and what the columns are."""
    made = dict.fromkeys((one.sources, one.machine) for one in outcomes)
    for source, where in made:
        yield f"Made by {version_of(source)}, on {where}."
    hours = sum(one.cpu for one in outcomes) / 3600
    requests = sum(one.requests for one in outcomes)
    yield f"{len(outcomes)} runs, {requests} requests, {hours:.1f} hours of a core."
    yield ""
    yield (
        "A fault is seen by the cell that its line must name. Requests and seconds are medians of the runs "
        "at rate 1, several runs at once. A rate is a share of prompts. One below 1 is run by the probe that "
        "the line names alone, and a run has caught it where any cell fails by the limit of a release gate, "
        f"1 % of prompts; lines that name L=193 tail=1 send {CORRUPT} / rate prompts at L=65 tail=1. A rate "
        f"is caught where at least {ENOUGH * 100:g} % of the seeds are. Below the first that is not, nothing "
        "is run."
    )


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
