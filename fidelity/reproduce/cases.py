"""The cases of each probe: for one cell, every recorded way to show a corrupt answer again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fidelity.compare import compare_first_token
from fidelity.judging import exact
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes import draft, ragged, reference
from fidelity.reference import COLD, DRAFTED
from fidelity.reproduce import rules
from fidelity.reproduce.batches import ragged_cases, row_cases
from fidelity.reproduce.case import Case, NoIdsError, Rule, steps_of
from fidelity.reproduce.failing import SCREENING
from fidelity.verdicts import CellVerdict

_PAIRED: dict[str, Callable[..., str]] = {
    "resend": rules.first_token,
    "sweep": rules.beyond_rounding,
    "checkpoint": rules.beyond_rounding,
    "impact": rules.whole_answer,
    "tasks": rules.whole_answer,
}
"""The rule of each probe whose hits are held against cold sends."""


@dataclass(frozen=True)
class Recorded:
    """One arm of a run: its plan, its record and what it was sent; and what a reference answered."""

    plan: RunPlan
    record: ArmRecord
    observations: Sequence[Observation]
    told: Sequence[Observation] = ()

    def attempts(self, *probes: str) -> list[list[Observation]]:
        """The sends of each attempt at each group of these probes, in order."""
        found: dict[tuple[str, int, str, int], list[Observation]] = {}
        for obs in self.observations:
            if obs.probe in probes and obs.group and obs.role != "screen":
                found.setdefault((obs.probe, obs.visit, obs.group, obs.attempt), []).append(obs)
        return list(found.values())


def cases_of(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    """Every case whose rule holds for what was recorded, by the strongest kind of rule that holds for any.
    Cases whose ids are not in the record are left out."""
    for make in (_by_rule, _by_tail, _by_known_answer, _by_move):
        found = [case for case in make(cell, of) if case.why]
        if found:
            yield from found
            return


def _by_rule(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    near_tie = of.plan.thresholds.near_tie
    if cell.name == SCREENING:
        for obs in of.observations:
            if obs.role == "screen":
                yield from _case([obs], partial(rules.broken, near_tie), of)
    elif cell.probe in _PAIRED:
        for sends in _of_cell(cell, of):
            yield from _pairs(cell, sends, partial(_PAIRED[cell.probe], near_tie), of)
    elif cell.probe == "decode":
        yield from _decodes(cell, of, rules.generated)
    elif cell.probe == "batch":
        if cell.name in (ragged.FILL, ragged.ROWS):
            yield from ragged_cases(cell, of.attempts("batch"), near_tie, of.record)
        else:
            yield from row_cases(cell, of.attempts("batch"), near_tie, of.record)
    elif cell.probe == draft.PROBE:
        yield from _drafts(cell, of)
    elif cell.probe == exact.PROBE:
        yield from _exact(cell, of)
    elif cell.probe == reference.PROBE:
        yield from _referred(cell, of)


def _by_tail(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    """A tail that the guard should not leave."""
    if cell.probe in ("resend", "sweep", "checkpoint"):
        for sends in _of_cell(cell, of):
            yield from _pairs(cell, sends, partial(rules.short_tail, of.record.min_tail), of)


def _by_known_answer(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    """A cold answer that is wrong at this length alone: cold and hit share the fault."""
    if cell.probe == "resend" and "even cold" in cell.reason:
        for sends in _of_cell(cell, of):
            yield from _case([send for send in sends if send.role == "cold"][:1], rules.wrong, of)


def _by_move(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    """Logprobs that moved while no token flipped."""
    if cell.probe in _PAIRED:
        for sends in _of_cell(cell, of):
            yield from map(_as_moved, _pairs(cell, sends, lambda _: "moved", of))
    elif cell.probe == "decode":
        yield from map(_as_moved, _decodes(cell, of, lambda _: "moved"))


def _as_moved(case: Case) -> Case:
    size = rules.distance(case.sends)
    return Case(case.steps, partial(rules.moved, size * rules.AGAIN), size, by_worst=True)


def _of_cell(cell: CellVerdict, of: Recorded) -> Iterator[list[Observation]]:
    """The attempts at a cell's groups that have a cold answer."""
    for sends in of.attempts(cell.probe):
        cold = next((send for send in sends if send.role == "cold"), None)
        if cold is None:
            continue
        if cell.kind == "floor":
            mine = cold.length == cell.length
        elif cell.probe == "sweep":
            mine = f"from {cold.length - (cold.tail or 0)}" == cell.name
        else:
            mine = cold.cell == cell.name
        if mine:
            yield sends


def _pairs(cell: CellVerdict, sends: Sequence[Observation], rule: Rule, of: Recorded) -> Iterator[Case]:
    """Each hit with its cold send and what filled the cache for it; of a floor, the cold sends."""
    cold = next(send for send in sends if send.role == "cold")
    if cell.kind == "floor" or cell.probe == "sweep":
        yield from _case([cold], partial(rules.broken, of.plan.thresholds.near_tie), of)
    if cell.kind == "floor":
        yield from _case([cold, *(send for send in sends if send.role == "cold2")], rule, of)
        return
    for hit in sends:
        if hit.role == "hit":
            here = [one for one in sends if one.namespace == hit.namespace and one.order < hit.order]
            yield from _case([cold, *(one for one in here if one.role == "seed"), hit], rule, of)


def _decodes(cell: CellVerdict, of: Recorded, rule: Rule) -> Iterator[Case]:
    for sends in of.attempts(cell.probe):
        if sends[0].cell == cell.name and sends[0].role in ("decode", "sample"):
            rescore = [send for send in sends if send.role == "rescore"]
            yield from _case([sends[0], *rescore], rule, of)


def _drafts(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    attempts = of.attempts(draft.PROBE)
    alone = [sends for sends in attempts if sends[0].cell == draft.ALONE]
    if cell.name == "output":
        for sends in alone:
            yield from _case(
                [sends[0], *(send for send in sends if send.role == "rescore")], rules.generated, of
            )
        return
    # A row is named after the group of the same prompt alone, which keeps the ids.
    ids = {sends[0].group: sends[0].input_ids for sends in alone}
    for sends in alone:
        name = sends[0].group
        for batch in attempts:
            if any(row.role == "row" and row.prompt == name for row in batch):
                rows = [replace(row, input_ids=ids.get(row.prompt, [])) for row in batch]
                for case in _case([sends[0], rows], partial(rules.accepted, name), of):
                    lost = 1 - rules.kept_alone(name, case.sends)
                    yield replace(case, worst=lost, by_worst=True, about=sends[0].prompt)


def _exact(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    for sends in of.attempts(*exact.SOURCES.get(cell.name, ())):
        roles = {send.role: send for send in reversed(sends)}
        if cell.name == exact.DECODE:
            names = ("decode", "rescore", "rescore2")
            chosen = [roles[name] for name in names if name in roles]
            if "decode" in roles and "rescore" in roles:
                yield from _case(chosen[:2], rules.identical, of)
                yield from _case(chosen, rules.identical, of)
        elif "cold" in roles and cell.name == exact.COLD and "cold2" in roles:
            yield from _case([roles["cold"], roles["cold2"]], rules.identical, of)
        elif "cold" in roles and cell.name == exact.HITS:
            yield from _pairs(cell, sends, rules.identical, of)


def _referred(cell: CellVerdict, of: Recorded) -> Iterator[Case]:
    """A cold send, or a draft, that a reference answered too. Clean prefills of generated answers are left
    out: it takes the reference's own to show one."""
    drafts = cell.name == reference.ACCEPTANCE
    role, rule = (DRAFTED, rules.drafts_less) if drafts else (COLD[0], rules.unlike)
    told = {tuple(obs.input_ids): obs for obs in of.told if obs.role == role and not obs.answer.failed}
    if drafts:
        own = list(draft.drafted(of.observations).values())
    else:
        own = [obs for obs in of.observations if obs.probe == "resend" and obs.role == "cold"]
    for send in own:
        trusted = told.get(tuple(send.input_ids))
        if trusted is not None and (drafts or send.length == cell.length):
            size = rules.off(trusted, send) if not drafts else 1 - rules.kept_of(trusted, send)
            by = partial(rule, trusted, of.plan.thresholds.near_tie, size * rules.AGAIN)
            for case in _case([send], by, of):
                yield replace(case, worst=size, by_worst=True, trusted=trusted)


def _case(sends: Sequence[Observation | Sequence[Observation]], rule: Rule, of: Recorded) -> Iterator[Case]:
    """The case of these sends, if the record keeps their ids."""
    flat = [one for entry in sends for one in ([entry] if isinstance(entry, Observation) else entry)]
    if not flat or any(one.answer.failed for one in flat if one.role != "seed"):
        return
    colds = [one for one in flat if one.input_ids]
    try:
        steps = steps_of(sends, colds, of.record)
    except NoIdsError:
        return
    yield Case(steps, rule, _regret(flat, of.plan.thresholds.near_tie))


def _regret(sends: Sequence[Observation], near_tie: float) -> float:
    """nats that the last send's first token lies below the cold one: what shows best."""
    if sends[0].role != "cold" or len(sends) < 2:
        return 0.0
    agreement = compare_first_token(sends[0].answer, sends[-1].answer, near_tie)
    return agreement.regret if agreement.corrupt else 0.0
