"""The verdict of the batch probe: a cell for each size, one for the ragged fill's rows, one for its hits.

The unit is a row. A row is corrupt by its first token against its own cold answer, by all of its tokens
against a clean prefill, or because it is another row's. What neither the server's log nor its load figures
show to have run together is assumed at best, and no pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fidelity.judging.batch_cell import Cell, with_findings
from fidelity.judging.batch_cell import verdict as verdict_of
from fidelity.judging.moved import JSD, MOVE, Finding, against_cold, against_controls
from fidelity.judging.rows import Judged, groups, judge_send
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.batch import cell_name, kind_of, rounds
from fidelity.probes.ragged import FILL, ROWS, planned
from fidelity.probes.rows import PROBE, suspect_cell
from fidelity.stats.topk import FloatArray
from fidelity.verdicts import NOT_APPLICABLE, CellVerdict

LARGER = "batches beyond the fault region"
ALONE = "hits after a fill alone"


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """The sizes in order, then the ragged fill where the plan has one."""
    return [
        *_sizes(plan, arm.name, record, observations, limits),
        *(_ragged(plan, arm.name, record, observations, limits) if plan.batch.ragged else ()),
    ]


def _sizes(
    plan: RunPlan, arm: str, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> Iterator[CellVerdict]:
    resend = suspect_cell(record.cells)
    region = record.facts.get("fault_region")
    sizes = sorted(set(plan.batch.sizes))
    kinds = {size: kind_of(size, resend.tail, region) for size in sizes}
    measured = {size: list(_rows(observations, size, limits.near_tie)) for size in sizes}
    controls = [row for size in sizes if kinds[size] == "control" for row in measured[size]]
    floor = _floor(observations, limits.near_tie)
    for size in sizes:
        name, rows, kind = cell_name(size), measured[size], kinds[size]
        if f"{PROBE} {name}" in record.skipped:
            yield _not_applicable(arm, name, kind, record.skipped[f"{PROBE} {name}"])
            continue
        few = len(record.prompts) < size
        cell = Cell(
            name,
            kind,
            resend.length,
            resend.tail,
            _why(rows, size, region, record),
            size * rounds(plan, size),
            f"it needs {size} prompts, and the run has {len(record.prompts)}" if few else "",
        )
        found: list[Finding] = []
        if kind == "suspect":
            found = list(against_controls(rows, controls, LARGER, limits, plan.seed))
        found = found or list(against_cold(rows, floor, limits))
        yield with_findings(verdict_of(plan, arm, cell, rows, limits), found)


def _ragged(
    plan: RunPlan, arm: str, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> Iterator[CellVerdict]:
    if f"{PROBE} {FILL}" in record.skipped:
        yield _not_applicable(arm, FILL, "suspect", record.skipped[f"{PROBE} {FILL}"])
        return
    fills, alone, hits = _filled(observations, limits.near_tie)
    count = len({row.sent.prompt for row in fills}) or planned(plan, len(record.prompts))
    # The fill may be of prefixes: their answers have no cold ones of their length.
    whole = [row for row in fills if row.cold is not None and row.cold.length == row.sent.length]
    if whole or not fills:
        cell = Cell(ROWS, "suspect", 0, None, "cold prompts of several lengths in one prefill", count)
        found = list(against_cold(whole, _floor(observations, limits.near_tie), limits))
        yield with_findings(verdict_of(plan, arm, cell, whole, limits), found)
    cell = Cell(FILL, "suspect", 0, None, "hits, each alone, on what that prefill kept", count)
    # What both kinds of hit share cancels in their difference.
    found = [
        *against_controls(hits, alone, ALONE, limits, plan.seed),
        *against_cold(hits, _floor(observations, limits.near_tie), limits),
    ]
    yield with_findings(verdict_of(plan, arm, cell, hits, limits), found)


def _filled(
    observations: Sequence[Observation], near_tie: float
) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """The rows of the ragged fill, the hits after a fill alone, and the hits after the ragged one."""
    fills: list[Judged] = []
    alone: list[Judged] = []
    hits: list[Judged] = []
    for roles, last in groups(observations, FILL):
        colds = {obs.prompt: obs for obs in roles.get("cold", ())}

        def judged(sent: Observation, colds: dict[str, Observation] = colds, last: bool = last) -> Judged:
            others = {prompt: cold for prompt, cold in colds.items() if prompt != sent.prompt}
            return judge_send(sent, colds.get(sent.prompt), others, near_tie, last=last)

        rows = {row.sent.prompt: row for row in map(judged, roles.get("fill", ()))}
        fills += rows.values()
        alone += map(judged, roles.get("hit", ()))
        for hit in map(judged, roles.get("ragged-hit", ())):
            fill = rows.get(hit.sent.prompt)
            missed = "nothing filled the cache" if fill is None else fill.missed
            formed = "" if fill is None else fill.formed
            hits.append(replace(hit, missed=hit.missed or missed, formed=formed))
    return fills, alone, hits


def _rows(observations: Sequence[Observation], size: int, near_tie: float) -> Iterator[Judged]:
    for roles, last in groups(observations, f"{cell_name(size)}#"):
        colds = {obs.prompt: obs for obs in roles.get("cold", ())}
        scored = {obs.prompt: obs for obs in roles.get("rescore", ())}
        for row in roles.get("row", ()):
            others = {prompt: cold for prompt, cold in colds.items() if prompt != row.prompt}
            clean = scored.get(row.prompt)
            yield judge_send(row, colds.get(row.prompt), others, near_tie, scored=clean, last=last)


def _floor(observations: Sequence[Observation], near_tie: float) -> Mapping[str, FloatArray]:
    """Cold against cold, wherever one prompt was sent cold more than once at one length."""
    colds: dict[tuple[str, int], list[Observation]] = {}
    for obs in observations:
        if obs.role == "cold" and not obs.answer.failed:
            colds.setdefault((obs.prompt, obs.length), []).append(obs)
    pairs = [judge_send(b, a, {}, near_tie) for same in colds.values() for a, b in pairwise(same)]
    return {
        JSD: np.array([pair.jsd for pair in pairs]),
        MOVE: np.array([pair.moved for pair in pairs]),
    }


def _why(rows: Sequence[Judged], size: int, region: int | None, record: ArmRecord) -> str:
    source = record.facts.get("region_source", "by its shapes the server")
    known = "the fault region is not known here: 1 to 4 rows are suspects"
    if region is not None:
        known = f"{source} is affected up to M = {region}" if region else f"{source} is not affected"
    tails = sorted({row.sent.length - row.sent.expected_cached for row in rows if row.sent.expected_cached})
    rows_said = "1 row" if size == 1 else f"{size} rows"
    if not tails:
        # Only their decode steps are small.
        return f"{rows_said} in one request, cold, then one token of each in a decode step; {known}"
    each = " or ".join("1 token" if tail == 1 else f"{tail} tokens" for tail in tails)
    return f"{rows_said} in one request, {each} of each computed, then one in a decode step; {known}"


def _not_applicable(arm: str, name: str, kind: str, reason: str) -> CellVerdict:
    return CellVerdict(arm=arm, probe=PROBE, name=name, kind=kind, state=NOT_APPLICABLE, reason=reason)
