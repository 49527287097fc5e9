"""One cell of the batch probe from its judged rows."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fidelity.engines.formed import LOG, METRICS, OVERLAP
from fidelity.judging.few import count_faces, decide, rate_limits
from fidelity.judging.moved import Finding
from fidelity.judging.rows import Judged
from fidelity.plan import RunPlan, Thresholds
from fidelity.probes.rows import PROBE
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Example,
    Reading,
)

EXAMPLES = 3
SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Cell:
    """`planned` rows; `unsent` says why none was sent, where the plan itself is the reason."""

    name: str
    kind: str
    length: int
    tail: int | None
    why: str
    planned: int
    unsent: str = ""


def verdict(plan: RunPlan, arm: str, cell: Cell, rows: Sequence[Judged], limits: Thresholds) -> CellVerdict:
    """By the rate of corrupt rows, and by what shows that the rows ran together."""
    counted = [row for row in rows if row.last or row.rules]
    corrupt = [row for row in counted if row.rules]
    missed = Counter(row.missed for row in counted if row.missed and not row.rules)
    exercised = len(counted) - missed.total()
    why = [row.rules[0] for row in corrupt] or [reason for reason, _ in missed.most_common()]
    state, reason = decide("rows", len(corrupt), exercised, cell.planned, why, limits)
    if state == NOT_EXERCISED and cell.unsent:
        reason = cell.unsent
    if state == PASS:
        state, reason = _doubts(plan, cell, counted, reason)
    lower, upper, figures = rate_limits(len(corrupt), exercised, limits)
    return CellVerdict(
        arm=arm,
        probe=PROBE,
        name=cell.name,
        kind=cell.kind,
        state=state,
        reason=reason,
        length=cell.length,
        tail=cell.tail,
        why=cell.why,
        prompts=max(cell.planned, len(counted)),
        exercised=exercised,
        corrupt=len(corrupt),
        sends=len(counted),
        corrupt_sends=len(corrupt),
        agreement=dict(Counter(row.agreement.kind for row in counted)),
        rate_lower=lower,
        rate_upper=upper,
        tails=_counts(row.sent.tail_seen for row in counted),
        cached=_counts(row.sent.answer.cached_tokens for row in counted),
        rules=dict(Counter(row.rules[0].split(":")[0].split(" (")[0] for row in corrupt)),
        faces=count_faces(row.sent for row in counted),
        values=sum(row.sent.answer.values for row in counted),
        missed={str(reason): count for reason, count in missed.items()},
        figures=figures,
        examples=tuple(_example(row) for row in corrupt[:EXAMPLES]),
        readings=tuple(_readings(counted)),
        notes=tuple(_alike(counted)),
    )


def with_findings(cell: CellVerdict, findings: Sequence[Finding]) -> CellVerdict:
    """The cell with its shifts laid over: they can take a pass away, the worst of them deciding."""
    cell = replace(cell, figures=(*cell.figures, *(found.figure for found in findings)))
    for wanted in (FAIL, INCONCLUSIVE):
        for found in findings:
            if cell.state == PASS and found.state == wanted:
                cell = replace(cell, state=wanted, reason=found.reason)
    return cell


def _doubts(plan: RunPlan, cell: Cell, rows: Sequence[Judged], reason: str) -> tuple[str, str]:
    """What a pass needs beside clean rows."""
    assumed = sum(row.assumed for row in rows)
    if assumed:
        said = f"assumed, not shown, that {assumed} of {len(rows)} rows ran together"
        if any(row.formed == OVERLAP for row in rows):
            return INCONCLUSIVE, f"{said}: the server's log and load figures do not tell"
        return (
            NOT_APPLICABLE,
            f"{said}: the server has no load figures, and its log is not ours (rows are clean)",
        )
    attached = plan.target.shared
    silent = sum(row.sent.alone is None for row in rows)
    if cell.kind == "suspect" and attached and silent:
        said = f"nothing shows that {silent} of {len(rows)} rows ran without other requests (--assume-idle)"
        return INCONCLUSIVE, said
    return PASS, reason


def _readings(rows: Sequence[Judged]) -> Iterator[Reading]:
    requests = {row.sent.batch: row.formed for row in rows if row.sent.batch}
    if requests:
        yield Reading("requests of several rows", len(requests))
        yield Reading(
            "shown to have run as one batch", sum(how in (LOG, METRICS) for how in requests.values())
        )
    for name, field in (("JSD from cold", "jsd"), ("|delta logprob| from cold", "moved")):
        values = np.array([getattr(row, field) for row in rows])
        values = np.where(np.isnan(values), np.inf, values)
        if values.size:
            yield Reading(f"{name}, median", float(np.quantile(values, 0.5, method="higher")), "nat")
            yield Reading(f"{name}, largest", float(values.max()), "nat")


def _alike(rows: Sequence[Judged]) -> Iterator[str]:
    """Rows of one request whose cold answers begin with one token: an exchange of theirs would not show."""
    begins: Counter[tuple[str, int]] = Counter()
    for row in rows:
        if row.sent.batch and row.cold is not None and row.cold.answer.output_ids:
            begins[row.sent.batch, row.cold.answer.output_ids[0]] += 1
    alike = sum(count for count in begins.values() if count > 1)
    if alike:
        yield (
            f"{alike} of {len(rows)} rows begin like another row of their request: an exchange of these "
            "would not show in their first token"
        )


def _example(row: Judged) -> Example:
    answer = row.sent.answer
    return Example(
        prompt=row.sent.prompt,
        expected=row.sent.expected_text,
        cold="" if row.cold is None else (row.cold.answer.text or "")[:SHOWN_CHARACTERS],
        other=(answer.text or answer.error or "")[:SHOWN_CHARACTERS],
        cached_tokens=answer.cached_tokens,
        tail=row.sent.tail_seen,
        why="; ".join(row.rules),
        order=row.sent.order,
    )


def _counts(values: Iterator[int | None]) -> dict[str, int]:
    known = sorted(value for value in values if value is not None)
    return {str(value): count for value, count in Counter(known).items()}
