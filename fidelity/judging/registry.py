"""The judges of the probes other than resend, and the comparisons of arms, by the name of their probe."""

from collections.abc import Callable, Mapping, Sequence

from fidelity.judging import (
    batch,
    checkpoint,
    decode,
    draft,
    equivalence,
    impact,
    replicas,
    speed,
    sweep,
    tasks,
)
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.plan_probes import ProbeName
from fidelity.verdicts import CellVerdict, Comparison

Judge = Callable[[RunPlan, Arm, ArmRecord, Sequence[Observation], Thresholds], list[CellVerdict]]
"""(plan, arm, its record, the probe's observations of this arm, limits) -> cells."""

Comparer = Callable[
    [RunPlan, Mapping[str, ArmRecord], Mapping[str, Sequence[Observation]], Thresholds], list[Comparison]
]
"""(plan, records by arm, the probe's observations by arm, limits) -> comparisons of the plan's arms."""

JUDGES: dict[ProbeName, Judge] = {
    "decode": decode.judge,
    "batch": batch.judge,
    "draft": draft.judge,
    "impact": impact.judge,
    "tasks": tasks.judge,
    "sweep": sweep.judge,
    "checkpoint": checkpoint.judge,
    "speed": speed.judge,
    "equivalence": equivalence.judge,
}

COMPARERS: dict[ProbeName, Comparer] = {
    "resend": replicas.compare,
    "draft": draft.compare,
    "speed": speed.compare,
    "equivalence": equivalence.compare,
}
