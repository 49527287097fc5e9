"""The cells of an arm as what explanations speak of: which path, how many tokens, corrupt or clean."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fidelity.judging.sweep import LARGEST_CORRUPT, SMALLEST_CLEAN, SMALLEST_CORRUPT
from fidelity.probes.ragged import FILL, ROWS
from fidelity.probes.reference import ACCEPTANCE
from fidelity.verdicts import FAIL, NOT_APPLICABLE, NOT_EXERCISED, PASS, CellVerdict

Path = Literal[
    "hit",
    "checkpoint",
    "cold",
    "decode",
    "batch",
    "ragged rows",
    "ragged fill",
    "output",
    "acceptance",
    "order",
    "cross-talk",
    "quoted",
    "known",
    "alone",
    "region",
    "reference",
    "reference acceptance",
]
"""Of cells: hit and checkpoint (each alone), cold (against cold again), decode, batch, the two ragged cells,
the two of the draft probe, clean prefills and drafts against a reference's. Of what they say beside their
rate: the order of corrupt hits, rows that are another row's, quoted logprobs that do not go with the emitted
token, known answers that are wrong cold (at one length alone), and the fault region of the server's
shapes."""

Outcome = Literal["corrupt", "moved", "clean"]
"""`moved`: no corrupt answer, but logprobs that need an explanation."""

SAID: tuple[Path, ...] = ("order", "cross-talk", "quoted", "known", "alone", "region")
"""The paths that are no cells."""

NOT_TOP = "not the top token"
MISQUOTED = (NOT_TOP, "probabilities above 1")
"""Absolute rules that what is quoted breaks beside a right token."""

QUOTED = "quoted logprobs that no distribution with the emitted token first has"
CROSS_TALK = "cross-talk"
WRONG_HERE = "cold wrong here and right at"
MOSTLY = 0.8


@dataclass(frozen=True)
class Condition:
    """`tail` tokens of one request are computed after a hit (0: no hit), in `rows` requests together, of
    prompts of `length` tokens (0: several). `said` is what was found, for a reader."""

    name: str
    path: Path
    outcome: Outcome
    said: str
    tail: int = 0
    rows: int = 1
    length: int = 0

    @property
    def is_hit(self) -> bool:
        """A whole prompt, served from the cache alone or in a batch."""
        return self.path in ("hit", "batch") and self.tail > 0


def conditions(cells: Sequence[CellVerdict]) -> list[Condition]:
    """Every cell that says something of a path, in their order, then what all of them say together."""
    # Where cold answers are wrong themselves, nothing can be held against them.
    wrong = {cell.length for cell in cells if _wrong_here(cell)}
    told = [
        cell
        for cell in cells
        if cell.state != NOT_APPLICABLE
        and not (cell.length in wrong and (cell.probe == "batch" or cell.kind == "floor"))
    ]
    return [*(one for cell in told for one in _of_cell(cell)), *_together(told)]


def is_bad(cell: CellVerdict) -> bool:
    """Does it show corruption, decided or not?"""
    return cell.state == FAIL or cell.corrupt > 0


def is_misquoted(reason: str) -> bool:
    """Does it name a rule that what is quoted broke, not the token?"""
    return any(rule in reason for rule in MISQUOTED)


def _of_cell(cell: CellVerdict) -> Iterator[Condition]:
    outcome = _outcome(cell)
    if outcome is None:
        return
    name = cell.name if cell.probe == "resend" else f"{cell.probe} {cell.name}"
    said = (
        f"{cell.corrupt} of {cell.exercised} corrupt" if cell.corrupt or outcome == "clean" else cell.reason
    )
    tail = cell.tail or 0
    if cell.probe == "resend":
        yield Condition(name, "cold" if cell.kind == "floor" else "hit", outcome, said, tail, 1, cell.length)
    elif cell.probe == "checkpoint":
        yield Condition(name, "checkpoint", outcome, said, tail, 1, cell.length)
    elif cell.probe == "sweep":
        yield from _of_sweep(cell, name)
    elif cell.probe == "decode":
        yield Condition(name, "decode", outcome, said)
    elif cell.probe == "reference" and cell.state in (PASS, FAIL):
        path: Path = "reference acceptance" if cell.name == ACCEPTANCE else "reference"
        yield Condition(cell.name, path, outcome, said, length=cell.length)
    elif cell.probe == "draft":
        yield Condition(name, "output" if cell.name == "output" else "acceptance", outcome, said)
    elif cell.probe == "batch" and cell.name in (ROWS, FILL):
        yield Condition(name, "ragged rows" if cell.name == ROWS else "ragged fill", outcome, said, rows=2)
    elif cell.probe == "batch":
        # A NaN that came as an HTTP error has no counts: it took the path all the same.
        hit = not cell.cached or any(int(cached) for cached in cell.cached)
        rows = int(cell.name.removeprefix("M="))
        yield Condition(name, "batch", outcome, said, tail if hit else 0, rows, cell.length)


def _of_sweep(cell: CellVerdict, name: str) -> Iterator[Condition]:
    """The ends of what is corrupt in a row of the map, and the first clean tail of a row with both."""
    position = int(cell.name.removeprefix("from "))
    readings = {reading.name: int(reading.value) for reading in cell.readings if reading.unit == "tokens"}
    ends: dict[int, Outcome] = {}
    for reading in (SMALLEST_CORRUPT, LARGEST_CORRUPT):
        if reading in readings:
            ends[readings[reading]] = "corrupt"
    if SMALLEST_CLEAN in readings:
        ends[readings[SMALLEST_CLEAN]] = "clean"
    if not is_bad(cell):
        ends[1] = "clean"
    for tail, outcome in sorted(ends.items()):
        yield Condition(f"{name} tail={tail}", "hit", outcome, outcome, tail, 1, position + tail)


def _wrong_here(cell: CellVerdict) -> bool:
    return any(not one.holds and one.name.startswith(WRONG_HERE) for one in cell.figures)


def _outcome(cell: CellVerdict) -> Outcome | None:
    if is_bad(cell):
        return "corrupt"
    if cell.state == NOT_EXERCISED or not cell.exercised:
        return None
    if any(
        not one.holds and ("of control hits" in one.name or "from cold" in one.name) for one in cell.figures
    ):
        return "moved"
    return "clean"


def _together(cells: Sequence[CellVerdict]) -> Iterator[Condition]:
    bad = [cell for cell in cells if is_bad(cell)]
    for cell in bad:
        if _wrong_here(cell):
            yield Condition("known answers wrong cold at one length alone", "alone", "corrupt", cell.name)
    told = [cell for cell in bad if cell.rules]
    if told:
        quoted = [cell for cell in told if _mostly(cell) or is_misquoted(cell.reason)]
        outcome: Outcome = "corrupt" if len(quoted) >= MOSTLY * len(told) else "clean"
        said = f"in {len(quoted)} of {len(told)} corrupt cells"
        yield Condition(QUOTED, "quoted", outcome, said)
    rows = [cell for cell in bad if cell.probe == "batch" and cell.name != FILL]
    if rows:
        crossed = [cell for cell in rows if any(rule.startswith(CROSS_TALK) for rule in cell.rules)]
        said = f"in {len(crossed)} of {len(rows)} corrupt cells of the batch probe"
        yield Condition(
            "rows that answer as another row", "cross-talk", "corrupt" if crossed else "clean", said
        )


def _mostly(cell: CellVerdict) -> bool:
    total = sum(cell.rules.values())
    return sum(count for name, count in cell.rules.items() if name.startswith(MISQUOTED)) >= MOSTLY * total
