"""The markers that a guard left in the server's processes, and what they prove."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fidelity.guards.inserver.process import SCHEDULER
from fidelity.guards.registry import Guard

CAPTURES = "under CUDA graphs calls are counted at capture only"


@dataclass(frozen=True)
class Marker:
    """One process under a guard, as it told last. `calls` and `lowered` are lower bounds for a process that
    was killed; `shapes` maps a call's shape to its own two counts; times are seconds since 1970."""

    pid: int
    guard: str
    ppid: int = 0
    role: str = "other"
    title: str = ""
    argv: tuple[str, ...] = ()
    versions: dict[str, str | None] = field(default_factory=dict)
    active: bool = False
    wrapped: str | None = None
    source_sha256: str | None = None
    waits_for: str | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    calls: int = 0
    lowered: int = 0
    shapes: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    error_count: int = 0
    loaded_at: float = 0.0
    updated_at: float = 0.0

    @property
    def schedules(self) -> bool:
        """Is it a scheduler process?"""
        return self.role == SCHEDULER

    def line(self) -> str:
        """The marker in one line."""
        if self.environment:
            what = ", ".join(f"{name}={value}" for name, value in self.environment.items())
        elif self.wrapped:
            source = self.source_sha256[:12] if self.source_sha256 else "unknown"
            what = f"wraps {self.wrapped} (source {source}), {self.calls} calls, {self.lowered} lowered"
        elif self.waits_for:
            what = f"wraps nothing: {self.waits_for} was never imported"
        else:
            what = "wraps nothing"
        wrong = (
            f", {self.error_count} errors, the first: {self.errors[0].splitlines()[0]}" if self.errors else ""
        )
        return f"{self.role} pid {self.pid}: {what}{wrong}"


@dataclass(frozen=True)
class Proof:
    """`ok`: the arm is what was asked, `reason` says why or why not. `warnings` do not make it less so."""

    ok: bool
    reason: str
    warnings: tuple[str, ...] = ()


def read_markers(directory: Path) -> list[Marker]:
    """The markers in a folder (none when it is missing), by pid. A file that is no marker counts as one of an
    unknown guard, with an error."""
    return sorted(map(_read, directory.glob("*.json")), key=lambda marker: (marker.pid, marker.loaded_at))


def scheduler_count(info: Mapping[str, Any]) -> int:
    """Scheduler processes of a server, from its /server_info: TP x PP x DP, or TP x PP where data-parallel
    attention puts the DP ranks inside the TP ones."""
    tp, pp, dp = (int(info.get(f"{kind}_size") or 1) for kind in ("tp", "pp", "dp"))
    return tp * pp * (1 if info.get("enable_dp_attention") else dp)


def prove(markers: Sequence[Marker], guard: Guard, schedulers: int, *, suspects_ran: bool = False) -> Proof:
    """Is an arm's server under `guard`, in each of its `schedulers` processes, and under no other?

    `suspects_ran`: requests that the guard is for have been answered. One that was never called is then no
    guard (retreat), or a warning (the wraps of aiter, which other kernels go around).
    """
    strays = [marker for marker in markers if not guard.in_processes or marker.guard != guard.name]
    if strays:
        asked = f"guard '{guard.name}'" if guard.in_processes else "no guard in its processes"
        return Proof(False, f"asked was {asked}, and there is '{strays[0].guard}' in {_lines(strays)}")
    if not guard.in_processes:
        return Proof(True, "no process has a guard")
    proven = [marker for marker in markers if marker.schedules and marker.active]
    if len(proven) < schedulers:
        have = _lines(markers) or "no process loaded it"
        return Proof(
            False,
            f"guard '{guard.name}' is active in {len(proven)} of {schedulers} scheduler processes: {have}",
        )
    failed = [marker for marker in proven if marker.error_count]
    if failed:
        return Proof(False, f"guard '{guard.name}' went wrong in {_lines(failed)}")
    called = any(marker.calls for marker in proven)
    if suspects_ran and guard.name == "retreat" and not called:
        return Proof(
            False,
            f"guard 'retreat' was never asked, this server matches prefixes elsewhere: {_lines(proven)}",
        )
    return Proof(
        True,
        f"guard '{guard.name}' is active in {_lines(proven)}",
        tuple(_warnings(proven, guard, schedulers, suspects_ran)),
    )


def prove_reported(guard: Guard, info: Mapping[str, Any]) -> Proof:
    """Does the server report the flags of the guard? `info` is its /server_info."""
    for keys, wanted in guard.reported:
        said = next((info[key] for key in keys if key in info), None)
        if said != wanted:
            return Proof(
                False, f"guard '{guard.name}': the server reports {keys[0]} {said!r}, not {wanted!r}"
            )
    return Proof(True, f"guard '{guard.name}': {guard.proof}")


def _warnings(proven: Sequence[Marker], guard: Guard, schedulers: int, suspects_ran: bool) -> Iterable[str]:
    if len(proven) > schedulers:
        yield f"{len(proven)} scheduler processes have guard '{guard.name}', {schedulers} were expected"
    if len({marker.source_sha256 for marker in proven}) > 1:
        yield "the processes wrap different sources of the same function"
    if not suspects_ran or guard.applied != "in-server" or guard.name == "retreat":
        return
    if not any(marker.calls for marker in proven):
        yield (
            f"guard '{guard.name}' was never called: this server's MoE goes another way (Triton, assembly or "
            "small-M kernels), so the fault it is for was not reached either"
        )
    elif not any(marker.lowered for marker in proven):
        yield f"guard '{guard.name}' never lowered a call although suspect cells ran ({CAPTURES})"


def _lines(markers: Iterable[Marker]) -> str:
    return "; ".join(marker.line() for marker in markers)


def _read(path: Path) -> Marker:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = {one.name for one in fields(Marker)}
        values = {name: value for name, value in data.items() if name in known}
        for name in ("argv", "errors"):
            values[name] = tuple(values.get(name, ()))
        return Marker(**values)
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        return Marker(pid=0, guard="unknown", errors=(f"{path.name} is no marker: {exc}",), error_count=1)
