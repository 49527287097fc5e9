"""The way of having a server that a target names."""

from contextlib import AbstractContextManager
from pathlib import Path

from fidelity.plan import Arm, Target
from fidelity.servers.attach import attach
from fidelity.servers.container import container
from fidelity.servers.embedded import embedded
from fidelity.servers.launch import Launch
from fidelity.servers.process import process
from fidelity.servers.running import RunningServer


def server_for(
    target: Target, arm: Arm, directory: Path, run_id: str, seed: int
) -> AbstractContextManager[RunningServer]:
    """A server for one arm, started or attached to on entry, ended on exit when it is ours.

    Its log goes to `directory`. Raises StartError, PlanError, UsageError on entry.
    """
    log = directory / f"server-{arm.name}.log"
    guard = Launch([], {})
    if target.kind == "attach":
        return attach(target)
    if target.kind == "process":
        return process(target, guard, log)
    if target.kind == "container":
        return container(target, guard, None, log, f"fidelity-{run_id}-{arm.name}")
    return embedded(target, arm, log, seed)
