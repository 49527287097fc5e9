"""The cases of the batch probe: what fills the cache, the list-valued request, the hit on what that kept."""

from collections.abc import Iterator, Sequence
from functools import partial

from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.probes import ragged
from fidelity.reproduce import rules
from fidelity.reproduce.case import Case, NoIdsError, steps_of
from fidelity.verdicts import CellVerdict

Sends = Sequence[Observation]


def row_cases(
    cell: CellVerdict, attempts: Sequence[Sends], near_tie: float, record: ArmRecord
) -> Iterator[Case]:
    """For each corrupt row of a size: the fewest sends that its rule needs."""
    for sends in attempts:
        rows = [send for send in sends if send.role == "row"]
        if not rows or rows[0].cell != cell.name:
            continue
        for row in rows:
            yield from _row(row, rows, sends, near_tie, record)


def _row(row: Observation, rows: Sends, sends: Sends, near_tie: float, record: ArmRecord) -> Iterator[Case]:
    colds = [send for send in sends if send.role == "cold"]
    seeds = [send for send in sends if send.role == "seed"]
    scored = [send for send in sends if send.role == "rescore" and send.prompt == row.prompt]
    spaces = {one.namespace for one in rows}
    needed = [cold for cold in colds if cold.prompt == row.prompt or cold.namespace in spaces]
    rule = partial(rules.row, row.prompt, "row", near_tie)
    for before, after in ((needed, []), (colds, []), (colds, scored)):
        yield from _case(row.prompt, [*before, *seeds, rows, *after], colds, rule, record)


def ragged_cases(
    cell: CellVerdict, attempts: Sequence[Sends], near_tie: float, record: ArmRecord
) -> Iterator[Case]:
    """For each corrupt row of the ragged fill, or each corrupt hit on what it kept."""
    role = "ragged-hit" if cell.name == ragged.FILL else "fill"
    for sends in attempts:
        fills = [send for send in sends if send.role == "fill"]
        colds = [send for send in sends if send.role == "cold"]
        for target in (send for send in sends if send.role == role and fills):
            own = [cold for cold in colds if cold.prompt == target.prompt]
            last = [target] if role == "ragged-hit" else []
            rule = partial(rules.row, target.prompt, role, near_tie)
            for before in (own, colds):
                yield from _case(target.prompt, [*before, fills, *last], colds, rule, record)


def _case(
    prompt: str,
    sends: Sequence[Observation | Sends],
    colds: Sends,
    rule: "partial[str]",
    record: ArmRecord,
) -> Iterator[Case]:
    try:
        yield Case(steps_of(sends, colds, record), rule, about=prompt)
    except NoIdsError:
        return
