"""The verdict of each arm: its cells by rate, then by shift, then as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fidelity import shift_judge
from fidelity.cell_judge import judge_floor, judge_hits
from fidelity.evidence import Group, groups_of
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.shift_judge import Measured, Shift
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    ArmVerdict,
    CellVerdict,
)


@dataclass(frozen=True)
class ArmEvidence:
    """One arm's observations, grouped, and each of its cells measured. `record` is None for an arm never
    begun."""

    arm: Arm
    record: ArmRecord | None
    observations: Sequence[Observation]
    groups: Sequence[Group]
    measured: tuple[Measured, ...]

    def of(self, cell: str) -> list[Group]:
        """The groups of one cell, by its name."""
        return [group for group in self.groups if group.cold.cell == cell]


def judge_arms(
    plan: RunPlan, records: Mapping[str, ArmRecord], observations: Sequence[Observation]
) -> list[ArmVerdict]:
    """Every arm of the plan, in its order. The tests for a shift are corrected over all deciding arms
    together."""
    evidence = [
        _gather(arm, records.get(arm.name), [obs for obs in observations if obs.arm == arm.name])
        for arm in plan.arms
    ]
    shifts: dict[tuple[str, str], Shift] = {}
    for baseline in (False, True):
        family = {one.arm.name: one.measured for one in evidence if one.arm.baseline is baseline}
        shifts |= shift_judge.find_shifts(family, plan.thresholds, plan.seed)
    return [_judge_arm(one, shifts, plan.thresholds) for one in evidence]


def _gather(arm: Arm, record: ArmRecord | None, observations: Sequence[Observation]) -> ArmEvidence:
    groups = groups_of(observations)
    measured: tuple[Measured, ...] = ()
    if record is not None:
        measured = tuple(
            shift_judge.measure(cell, [g for g in groups if g.cold.cell == cell.name], record.min_tail)
            for cell in record.cells
        )
    return ArmEvidence(arm, record, observations, groups, measured)


def _judge_arm(
    evidence: ArmEvidence, shifts: Mapping[tuple[str, str], Shift], limits: Thresholds
) -> ArmVerdict:
    """Fail when any cell fails; pass when every cell passes; else inconclusive."""
    arm, record = evidence.arm, evidence.record
    cells = tuple(_judge_cells(evidence, record, shifts, limits)) if record else ()
    state, reason = _arm_state(cells)
    if record and record.unsure:
        reason += "; unsure model: too few prompts had a clear answer"
    facts = record.facts if record else {}
    right = [group.begins_right for group in evidence.groups if group.last]
    return ArmVerdict(
        name=arm.name,
        guard=arm.guard,
        baseline=arm.baseline,
        state=state,
        reason=reason,
        server=f"{facts['engine']} {facts['version']}, {facts['model']}" if facts else "not reached",
        cells=cells,
        warnings=tuple(record.warnings if record else ()),
        replaced=tuple(record.replaced if record else ()),
        unsure=bool(record and record.unsure),
        cold_right=sum(right),
        cold_known=len(right),
        requests=len(evidence.observations),
        failed_requests=sum(1 for obs in evidence.observations if obs.answer.error and not obs.answer.faces),
        seconds=record.seconds if record else 0.0,
    )


def _judge_cells(
    evidence: ArmEvidence, record: ArmRecord, shifts: Mapping[tuple[str, str], Shift], limits: Thresholds
) -> list[CellVerdict]:
    floors, hits = [], []
    arm = evidence.arm.name
    for measured in evidence.measured:
        cell, groups = measured.cell, evidence.of(measured.cell.name)
        floors.append(judge_floor(arm, cell, groups, limits))
        verdict = judge_hits(arm, cell, groups, limits, record.min_tail)
        verdict = shift_judge.apply(verdict, measured, shifts.get((arm, cell.name)), limits)
        if cell.kind == "suspect":
            controls = [
                evidence.of(other.name)
                for other in record.cells
                if other.kind == "control" and other.position == cell.position
            ]
            verdict = shift_judge.neighbour_rule(verdict, groups, controls, limits)
        hits.append(verdict)
    return _require_a_control(hits, record.min_tail) + floors


def _require_a_control(hits: list[CellVerdict], min_tail: int) -> list[CellVerdict]:
    """A structural pass is worth nothing where nothing hits: some control must still be served from the
    cache."""
    if any(cell.kind == "control" and cell.exercised for cell in hits):
        return hits
    reason = "no control was served from the cache, so the absence of short tails proves nothing"
    return [
        replace(cell, state=INCONCLUSIVE, reason=reason)
        if cell.state == PASS and cell.tail is not None and cell.tail < min_tail
        else cell
        for cell in hits
    ]


def _arm_state(cells: Sequence[CellVerdict]) -> tuple[str, str]:
    for wanted, state in ((FAIL, FAIL), (NOT_EXERCISED, INCONCLUSIVE), (INCONCLUSIVE, INCONCLUSIVE)):
        found = [cell for cell in cells if cell.state == wanted]
        if found:
            more = f" (and {len(found) - 1} more cells)" if len(found) > 1 else ""
            said = f"{found[0].name} not exercised" if wanted == NOT_EXERCISED else found[0].name
            return state, f"{said}: {found[0].reason}{more}"
    if not cells:
        return INCONCLUSIVE, "not exercised: nothing was measured"
    worst = max(cells, key=lambda cell: cell.rate_upper)
    return PASS, worst.reason
