"""The way of having a server that a target names."""

import shlex
from contextlib import AbstractContextManager
from pathlib import Path

from fidelity.plan import Arm, Target
from fidelity.servers.attach import attach
from fidelity.servers.container import container, find_runtime, inspect
from fidelity.servers.container import launch_line as container_launch_line
from fidelity.servers.embedded import command as embedded_command
from fidelity.servers.embedded import embedded
from fidelity.servers.launch import Launch
from fidelity.servers.process import launch_line as process_launch_line
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


def command_for(target: Target, arm: Arm) -> str:
    """The command that starts an arm's server, as one shell line, without running it.

    Raises StartError where what is needed to know it (sglang, a runtime, the image) is not here.
    """
    guard = Launch([], {})
    if target.kind == "attach":
        return f"# attached to {target.url}: nothing is started"
    if target.kind == "process":
        line = process_launch_line(target, 30000, guard)
        return " ".join(
            [*(f"{key}={shlex.quote(value)}" for key, value in line.env.items()), shlex.join(line.argv)]
        )
    if target.kind == "container":
        runtime = find_runtime(target.runtime)
        image = inspect(runtime, target.image or "")
        return shlex.join(container_launch_line(target, runtime, image, 30000, "fidelity", guard, None))
    return shlex.join(embedded_command(target, arm, port=30000))
