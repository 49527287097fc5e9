"""The verdict of each arm: its cells by rate, then by shift, then as a whole."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fidelity import shift_judge, text_judge
from fidelity.cell_judge import judge_floor, judge_hits
from fidelity.comparison import (
    Sends,
    Tie,
    compare_floor,
    compare_hits,
    tie_threshold,
    with_near_tie,
)
from fidelity.diagnose import diagnose
from fidelity.diagnosis.order import order_of_corruption
from fidelity.evidence import Group, groups_of
from fidelity.judging import exact, longer, reference
from fidelity.judging.registry import JUDGES
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.plan_reference import ARM
from fidelity.probes.cells import Cell
from fidelity.shift_judge import Measured, Shift
from fidelity.unjudged import unjudged_sends
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    ArmVerdict,
    CellVerdict,
)

NO_FIDELITY = ("speed",)
"""Probes whose passing cells say nothing of what is computed."""


@dataclass(frozen=True)
class CellEvidence:
    """One cell's prompts, its hits and its cold floor held against cold, and how far they moved."""

    cell: Cell
    groups: Sequence[Group]
    hits: Sends
    floor: Sends
    measured: Measured


@dataclass(frozen=True)
class ArmEvidence:
    """One arm's observations, and each of its cells. `record` is None for an arm never begun; `tie` is what
    counts as a near-tie on this server."""

    arm: Arm
    record: ArmRecord | None
    observations: Sequence[Observation]
    groups: Sequence[Group]
    cells: Sequence[CellEvidence]
    tie: Tie


def judge_arms(
    plan: RunPlan, records: Mapping[str, ArmRecord], observations: Sequence[Observation], limits: Thresholds
) -> list[ArmVerdict]:
    """Every arm of the plan, in its order. The tests for a shift are corrected over all deciding arms
    together."""
    by_arm: dict[str, list[Observation]] = defaultdict(list)
    for obs in observations:
        by_arm[obs.arm].append(obs)
    resend = "resend" in plan.selected
    evidence = [
        _gather(arm, records.get(arm.name), by_arm[arm.name], limits, resend=resend) for arm in plan.arms
    ]
    shifts: dict[tuple[str, str], list[Shift]] = {}
    for baseline in (False, True):
        family = {
            one.arm.name: [cell.measured for cell in one.cells]
            for one in evidence
            if one.arm.baseline is baseline
        }
        shifts |= shift_judge.find_shifts(family, limits, plan.seed)
    unsure_alone = plan.target.shared
    told = by_arm[ARM] if "reference" in plan.selected else []
    return [_judge_arm(plan, one, shifts, told, limits, unsure_alone=unsure_alone) for one in evidence]


def _gather(
    arm: Arm,
    record: ArmRecord | None,
    observations: Sequence[Observation],
    limits: Thresholds,
    *,
    resend: bool,
) -> ArmEvidence:
    groups = groups_of([obs for obs in observations if obs.probe == "resend"])
    cells = []
    if record is not None and resend:
        by_cell: dict[str, list[Group]] = defaultdict(list)
        for group in groups:
            by_cell[group.cold.cell].append(group)
        for cell in record.cells:
            own = by_cell[cell.name]
            hits = compare_hits(cell, own, limits.near_tie, record.min_tail)
            floor = compare_floor(own, limits.near_tie)
            cells.append(CellEvidence(cell, own, hits, floor, shift_judge.measure(cell, hits, floor)))
    healthy = [cell.floor for cell in cells] + [cell.hits for cell in cells if cell.cell.kind == "control"]
    tie = tie_threshold(healthy, limits.near_tie)
    if tie.threshold > limits.near_tie:
        cells = [
            replace(
                cell,
                hits=with_near_tie(cell.hits, tie.threshold),
                floor=with_near_tie(cell.floor, tie.threshold),
            )
            for cell in cells
        ]
    return ArmEvidence(arm, record, observations, groups, cells, tie)


def _judge_arm(
    plan: RunPlan,
    evidence: ArmEvidence,
    shifts: Mapping[tuple[str, str], list[Shift]],
    told: Sequence[Observation],
    limits: Thresholds,
    *,
    unsure_alone: bool,
) -> ArmVerdict:
    """Fail when any cell fails; pass when every cell passes; else inconclusive. `told` is what a reference
    answered; `unsure_alone`: others may use the server."""
    arm, record = evidence.arm, evidence.record
    cells: tuple[CellVerdict, ...] = ()
    if record:
        cells = tuple(_judge_cells(evidence, record, shifts, limits, unsure_alone, plan.seed))
        cells += tuple(_judge_probes(plan, arm, record, evidence.observations, told, limits))
    state, reason = _arm_state(cells)
    flag = record.facts.get("cached_tokens_flag", "") if record else ""
    unjudged = unjudged_sends(evidence.observations, flag)
    if state != FAIL and unjudged.broken_screens:
        state = FAIL
        reason = f"{unjudged.broken_screens} cold answers of the screening are broken: {unjudged.rule}"
    if state == PASS and unjudged.cold_start:
        state, reason = INCONCLUSIVE, "most of the warm-up failed: fresh memory hides what is looked for"
    if record and record.unsure:
        reason += "; unsure model: too few prompts had a clear answer"
    facts = record.facts if record else {}
    if state == PASS and "logprobs" in facts.get("lacks", {}):
        state, reason = INCONCLUSIVE, facts["lacks"]["logprobs"]
    right = [group.begins_right for group in evidence.groups if group.last]
    verdict = ArmVerdict(
        name=arm.name,
        guard=arm.guard,
        baseline=arm.baseline,
        state=state,
        reason=reason,
        server=f"{facts['engine']} {facts['version']}, {facts['model']}" if facts else "not reached",
        cells=cells,
        warnings=(*(record.warnings if record else ()), *unjudged.warnings, *_unsorted(evidence)),
        replaced=tuple(record.replaced if record else ()),
        unsure=bool(record and record.unsure),
        cold_right=sum(right),
        cold_known=len(right),
        requests=len(evidence.observations),
        failed_requests=sum(1 for obs in evidence.observations if obs.answer.error and not obs.answer.faces),
        seconds=record.seconds if record else 0.0,
        skipped=dict(record.skipped) if record else {},
    )
    if state == PASS:
        return verdict
    order = order_of_corruption(evidence.observations, evidence.tie.threshold)
    return replace(verdict, hypotheses=diagnose(verdict, facts, order))


def _judge_probes(
    plan: RunPlan,
    arm: Arm,
    record: ArmRecord,
    observations: Sequence[Observation],
    told: Sequence[Observation],
    limits: Thresholds,
) -> Iterator[CellVerdict]:
    """The cells of every probe but resend; one that says so for each that the server could not take."""
    for name in plan.selected:
        if name in record.skipped:
            yield CellVerdict(
                arm=arm.name,
                probe=name,
                name=name,
                kind="",
                state=NOT_APPLICABLE,
                reason=record.skipped[name],
            )
        elif name in JUDGES:
            own = [obs for obs in observations if obs.probe == name]
            yield from JUDGES[name](plan, arm, record, own, limits)
        elif name == "reference":
            yield from reference.judge(plan, arm, record, observations, told, limits)
    if plan.exact:
        yield from exact.judge(plan, arm, record, observations, limits)


def _judge_cells(
    evidence: ArmEvidence,
    record: ArmRecord,
    shifts: Mapping[tuple[str, str], list[Shift]],
    limits: Thresholds,
    unsure_alone: bool,
    seed: int,
) -> list[CellVerdict]:
    floors, hits = [], []
    arm = evidence.arm.name
    shared = record.facts.get("cold_shares_step")
    known = [(one.cell, one.floor) for one in evidence.cells] if shared else []
    beside = longer.judge(arm, known, evidence.tie, limits, seed)
    for one in evidence.cells:
        cell = one.cell
        if not cell.moved:  # the floor of that length is its control's
            floors.append(judge_floor(arm, cell, one.floor, evidence.tie, limits))
        verdict = judge_hits(arm, cell, one.hits, evidence.tie, limits, record.min_tail)
        verdict = shift_judge.apply(verdict, one.measured, shifts.get((arm, cell.name), []), limits)
        verdict = text_judge.apply(verdict, one.groups, limits)
        if cell.kind == "suspect":
            verdict = shift_judge.neighbour_rule(verdict, one.groups, _neighbours(cell, evidence), limits)
            if unsure_alone:
                verdict = _require_solitude(verdict, one.hits)
            if shared:
                verdict = longer.lay_over(verdict, beside, shared)
        hits.append(verdict)
    return [*_require_a_control(hits, record.min_tail), *beside.values(), *floors]


def _neighbours(suspect: Cell, evidence: ArmEvidence) -> list[Sequence[Group]]:
    """The next two lengths, where both are measured, else the controls that resume from the same position."""
    same = [one for one in evidence.cells if one.cell.position == suspect.position]
    after = [one.groups for one in same if one.cell.length in (suspect.length + 1, suspect.length + 2)]
    return after if len(after) == 2 else [one.groups for one in same if one.cell.kind == "control"]


def _unsorted(evidence: ArmEvidence) -> Iterator[str]:
    count = sum(cell.hits.unsorted + cell.floor.unsorted for cell in evidence.cells)
    if count:
        yield f"{count} answers list their top logprobs out of order: they were sorted here"


def _require_solitude(verdict: CellVerdict, hits: Sends) -> CellVerdict:
    """On a server that others may use, a pass needs the server's word that each hit was alone."""
    silent = sum(one.missed is None and one.send.alone is None for one in hits.judged)
    if verdict.state != PASS or not silent:
        return verdict
    reason = (
        f"nothing shows that {silent} of {len(hits.judged)} re-sends were alone on the server, and company "
        "hides a fault at one token (--assume-idle takes it for granted)"
    )
    return replace(verdict, state=INCONCLUSIVE, reason=reason)


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
            first = found[0].name if found[0].probe == "resend" else f"{found[0].probe} {found[0].name}"
            said = f"{first} not exercised" if wanted == NOT_EXERCISED else first
            return state, f"{said}: {found[0].reason}{more}"
    cells = [cell for cell in cells if cell.state != NOT_APPLICABLE]
    if not cells:
        return INCONCLUSIVE, "not exercised: nothing was measured"
    resend = [cell for cell in cells if cell.probe == "resend"]
    if resend and not any(cell.kind == "suspect" for cell in resend):
        return INCONCLUSIVE, "not exercised: the plan has no suspect tail, so nothing it measures could fail"
    if all(cell.probe in NO_FIDELITY for cell in cells):
        return INCONCLUSIVE, "not exercised: what was measured here is speed, which decides no fidelity"
    worst = max(resend or cells, key=lambda cell: cell.rate_upper)
    return PASS, worst.reason
