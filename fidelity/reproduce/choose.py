"""Which cell of a run is shown again, and by which of its cases."""

from collections.abc import Sequence
from dataclasses import dataclass

from fidelity.errors import UsageError, did_you_mean
from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.plan import Target
from fidelity.plan_reference import ARM
from fidelity.reproduce.case import Case
from fidelity.reproduce.cases import Recorded, cases_of
from fidelity.reproduce.failing import cell_name, failing_cells, first_shown
from fidelity.verdicts import CellVerdict, RunVerdict


@dataclass(frozen=True)
class Reproduction:
    """A failing cell, and the smallest case of it; `label` says what the run speaks of."""

    cell: CellVerdict
    case: Case
    target: Target
    guard: str
    seed: int
    label: str
    run_id: str
    near_tie: float
    engine: str = "sglang"


def find_cell(verdict: RunVerdict, name: str | None, arm: str | None) -> CellVerdict | None:
    """The cell of this name, a failing one before others; without a name the first that fails, None where
    none does. Raises UsageError for an arm or a cell that the run does not have."""
    arms = [one.name for one in verdict.arms]
    if arm is not None and arm not in arms:
        raise UsageError(f"the run has no arm '{arm}'", did_you_mean(arm, arms))
    failing = [cell for cell in failing_cells(verdict) if arm in (None, cell.arm)]
    if name is None:
        return first_shown(failing) or next(iter(failing), None)
    cells = [*failing, *(cell for one in verdict.arms for cell in one.cells if arm in (None, one.name))]
    wanted = " ".join(name.split())
    for cell in cells:
        if wanted in (cell_name(cell), f"{cell.probe} {cell.name}"):
            return cell
    known = list(dict.fromkeys(cell_name(cell) for cell in cells))
    where = f"arm {arm}" if arm else "the run"
    raise UsageError(f"{where} has no cell '{name}'", did_you_mean(name, known))


def reproduction(
    cell: CellVerdict, manifest: Manifest, label: str, observations: Sequence[Observation]
) -> Reproduction | None:
    """The smallest case of a failing cell; None where the record holds none. `observations` may be of all
    arms."""
    plan, record = manifest.plan, manifest.arms.get(cell.arm)
    if record is None:
        return None
    own = [obs for obs in observations if obs.arm == cell.arm]
    told = [obs for obs in observations if obs.arm == ARM]
    best = min(cases_of(cell, Recorded(plan, record, own, told)), key=lambda case: case.order, default=None)
    if best is None:
        return None
    return Reproduction(
        cell,
        best,
        next((plan.target_of(arm) for arm in plan.arms if arm.name == cell.arm), plan.target),
        record.guard,
        plan.seed,
        label,
        manifest.run_id,
        plan.thresholds.near_tie,
        str(record.facts.get("engine") or "sglang"),
    )
