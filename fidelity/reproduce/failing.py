"""The failing cells of a run, in the order in which they are shown, and how each is named."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fidelity.verdicts import FAIL, ArmVerdict, CellVerdict, RunVerdict

PROBES = (
    "resend",
    "sweep",
    "checkpoint",
    "impact",
    "tasks",
    "decode",
    "batch",
    "draft",
    "exact",
    "reference",
)
"""Those whose failing cells a few requests show again; others compare whole arms, or times."""

SCREENING = "screening"
"""In place of a cell: the cold answers that chose the prompts, where these are broken themselves."""

_KINDS = ("suspect", "control", "floor")


def cell_name(cell: CellVerdict) -> str:
    """As the reports name it: the resend probe goes without saying."""
    return cell.name if cell.probe == "resend" else f"{cell.probe} {cell.name}"


def failing_cells(verdict: RunVerdict) -> list[CellVerdict]:
    """Those of the deciding arms before those of baselines; of each arm suspects first. An arm that fails by
    its screening alone has that as its cell."""
    arms = sorted(verdict.arms, key=lambda arm: arm.baseline)
    return [cell for arm in arms for cell in _failing(arm)]


def _failing(arm: ArmVerdict) -> Iterator[CellVerdict]:
    found = [cell for cell in arm.cells if cell.state == FAIL]
    yield from sorted(found, key=lambda cell: _KINDS.index(cell.kind) if cell.kind in _KINDS else len(_KINDS))
    if arm.state == FAIL and not found:
        yield CellVerdict(arm.name, "resend", SCREENING, "floor", FAIL, arm.reason)


def first_shown(failing: Sequence[CellVerdict]) -> CellVerdict | None:
    """The first of some failing cells that requests can show again."""
    return next((cell for cell in failing if cell.probe in PROBES), None)


def command(directory: Path, cell: CellVerdict, verdict: RunVerdict) -> str:
    """What prints the reproduction of a cell; the arm is named where several have such a failing cell."""
    alike = [one for one in failing_cells(verdict) if cell_name(one) == cell_name(cell)]
    arm = ["--arm", cell.arm] if alike and alike[0].arm != cell.arm else []
    return shlex.join(["fidelity", "reproduce", str(directory), cell_name(cell), *arm])
