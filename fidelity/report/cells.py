"""Cells of several arms side by side, and the examples worth showing first."""

from collections.abc import Mapping
from itertools import chain, zip_longest

from fidelity.verdicts import ArmVerdict, CellVerdict, Example, RunVerdict

Key = tuple[str, str, str]
Scripts = Mapping[Key, str]
"""What shows each failing cell again: requests for a shell, or the command that prints them."""

_KIND_ORDER = {"suspect": 0, "control": 1, "floor": 2}


def side_by_side(verdict: RunVerdict, *, resend: bool = True) -> list[list[CellVerdict | None]]:
    """One row per condition, one place per arm, None where an arm lacks it: of the resend probe (suspects,
    controls, floors), or of the others in their order."""
    arms = [
        {_condition(cell): cell for cell in arm.cells if (cell.probe == "resend") is resend}
        for arm in verdict.arms
    ]
    conditions = dict.fromkeys(key for arm in arms for key in arm)
    if not resend:
        return [[arm.get(key) for arm in arms] for key in conditions]
    ordered = sorted(conditions, key=lambda key: _KIND_ORDER.get(key[2], len(_KIND_ORDER)))
    return [[arm.get(key) for arm in arms] for key in ordered]


def examples(verdict: RunVerdict, most: int) -> list[tuple[CellVerdict, Example]]:
    """Up to `most` examples, the arms taking turns, each prompt once per arm."""
    turns = zip_longest(*(_of_arm(arm) for arm in verdict.arms))
    return [found for found in chain.from_iterable(turns) if found is not None][:most]


def key_of(cell: CellVerdict) -> Key:
    """What tells a cell from all others of a run: arm, probe and name."""
    return cell.arm, cell.probe, cell.name


def first_scripts(verdict: RunVerdict, scripts: Scripts) -> list[tuple[str, str]]:
    """Each arm with the first of its scripts, in their order."""
    found: dict[str, str] = {}
    for (arm, _, _), script in scripts.items():
        found.setdefault(arm, script)
    return [(arm.name, found[arm.name]) for arm in verdict.arms if arm.name in found]


def _of_arm(arm: ArmVerdict) -> list[tuple[CellVerdict, Example]]:
    first: dict[str, tuple[CellVerdict, Example]] = {}
    for cell in sorted(arm.cells, key=lambda cell: _KIND_ORDER.get(cell.kind, len(_KIND_ORDER))):
        for example in cell.examples:
            first.setdefault(example.prompt, (cell, example))
    return list(first.values())


def _condition(cell: CellVerdict) -> tuple[str, str, str]:
    return cell.probe, cell.name, cell.kind
