"""What a guard adds to the server of an arm, and the proof that the server runs under it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidelity.errors import NotWhatWasAskedError
from fidelity.guards import apply, markers
from fidelity.guards.registry import Guard
from fidelity.servers.launch import Additions


@dataclass(frozen=True)
class Folders:
    """`modules`: the guard's code. `markers`: where one start's processes tell of it, empty at first."""

    modules: Path
    markers: Path


def folders(directory: Path, arm: str) -> Folders:
    """The two folders for the next start of an arm, in the run directory. Nothing is made yet."""
    told = directory / "markers" / arm
    starts = len(list(told.iterdir())) if told.exists() else 0
    return Folders((directory / "guard").absolute(), (told / f"start-{starts + 1}").absolute())


def lay_out(guard: Guard, here: Folders, version: str | None) -> None:
    """Make the folders. Raises OSError."""
    here.markers.mkdir(parents=True)
    if guard.in_processes:
        apply.write_folder(here.modules, version)


def additions(guard: Guard, seen: Folders, existing: Mapping[str, str]) -> Additions:
    """The guard's flags and variables. `seen`: the folders as the server sees them; `existing`: the
    environment it has without them."""
    env = apply.environment(guard, seen.modules, seen.markers, existing)
    return Additions(dict(guard.flags), env)


def prove(
    guard: Guard, told: list[markers.Marker], info: Mapping[str, Any], *, suspects_ran: bool
) -> tuple[str, ...]:
    """Warnings about a server that is what was asked. `told` are its processes' markers, `info` its
    /server_info. Raises NotWhatWasAskedError for one that is not."""
    proof = markers.prove(told, guard, markers.scheduler_count(info), suspects_ran=suspects_ran)
    for one in (proof, markers.prove_reported(guard, info)):
        if not one.ok:
            raise NotWhatWasAskedError(
                f"the server is not what was asked: {one.reason}",
                "its log says what went wrong; `fidelity doctor` shows the versions",
            )
    return proof.warnings
