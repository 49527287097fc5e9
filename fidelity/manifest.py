"""Everything needed to repeat and re-judge a run, rewritten whole at each step: `manifest.json`."""

import json
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fidelity import __version__
from fidelity.errors import ResultsError
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell

NAME = "manifest.json"


@dataclass
class ArmRecord:
    """What one arm was: facts of its server (without the raw answer), cells, prompts and named warnings."""

    guard: str
    min_tail: int
    facts: dict[str, Any] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    unsure: bool = False
    tokenizer: str = ""
    warnings: list[str] = field(default_factory=list)
    image: str | None = None
    """The container image of its server, with its digest."""
    markers: list[str] = field(default_factory=list)
    """What each of its server's processes tells of its guard, one line each."""
    seconds: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)
    """Probes of the plan that this server could not take, and why."""
    sweep: list[tuple[int, int]] = field(default_factory=list)
    """(position, tail) of each cell of the sweep, in tokens."""
    reference: str = ""
    """What its cold answers were held against, in words."""
    error: str = ""
    """Why this replica could not be run, where the others went on without it."""
    unfinished: str = ""
    """Why it was left before everything was sent."""


@dataclass
class Manifest:
    """`status`: running, complete, stopped at the first proof, interrupted, out of time, out of requests,
    or failed. `starts`: how often the run was begun or resumed. `looks_taken`: how often it was judged and
    then given more prompts, this time included."""

    run_id: str
    started: str
    plan: RunPlan
    argv: list[str] = field(default_factory=list)
    status: str = "running"
    error: str | None = None
    exit_code: int | None = None
    starts: int = 0
    looks_taken: int = 1
    arms: dict[str, ArmRecord] = field(default_factory=dict)
    version: str = __version__
    python: str = sys.version.split()[0]
    platform: str = platform.platform()

    def save(self, directory: Path) -> None:
        """Write it whole or not at all. Raises ResultsError."""
        data = {**asdict(self), "plan": self.plan.model_dump(mode="json")}
        part = directory / (NAME + ".part")
        try:
            part.write_text(json.dumps(data, indent=1), encoding="utf-8")
            part.replace(directory / NAME)
        except OSError as exc:
            raise ResultsError(f"cannot write {directory / NAME}: {exc.strerror}") from exc


def load(directory: Path) -> Manifest:
    """The manifest of a run directory. Raises ResultsError when there is none or it cannot be read."""
    path = directory / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        arms = {
            name: ArmRecord(**{**arm, "cells": [Cell(**cell) for cell in arm["cells"]]})
            for name, arm in data["arms"].items()
        }
        return Manifest(**{**data, "arms": arms, "plan": RunPlan.model_validate(data["plan"])})
    except OSError as exc:
        raise ResultsError(f"{directory} is not a run: {exc.strerror}", "give the folder of a run") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ResultsError(f"{path} cannot be read by this version: {exc}") from exc
