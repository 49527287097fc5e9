"""The way of having a server that a target names."""

import os
import shlex
from contextlib import AbstractContextManager
from pathlib import Path

from fidelity.errors import PlanError
from fidelity.guards.registry import check_fits
from fidelity.plan import Arm, Target
from fidelity.servers import container, guarded, image, launch, process
from fidelity.servers.attach import attach
from fidelity.servers.embedded import command as embedded_command
from fidelity.servers.embedded import embedded
from fidelity.servers.running import RunningServer


def server_for(
    target: Target, arm: Arm, directory: Path, run_id: str, seed: int
) -> AbstractContextManager[RunningServer]:
    """A server for one arm, started or attached to on entry, ended on exit when it is ours.

    Its log, its guard and its markers go to `directory`. Raises StartError, PlanError, UsageError, here or on
    entry.
    """
    log = directory / f"server-{arm.name}.log"
    if target.kind == "attach":
        check_fits(arm.guard, "attach")
        return attach(target)
    if target.kind == "embedded":
        check_fits(arm.guard, "embedded")
        return embedded(target, arm, log, seed)
    _check_flags(target)
    here = guarded.folders(directory, arm.name)
    if target.kind == "process":
        found = process.installed(target)
        guard = check_fits(arm.guard, "process", found.version)
        guarded.lay_out(guard, here, found.version)
        added = guarded.additions(guard, here, _environment(target))
        return process.process(target, found, added, log, here.markers)
    runtime = image.find_runtime(target.runtime)
    inspected = image.inspect(runtime, target.image or "")
    guard = check_fits(arm.guard, "container", inspected.sglang.version)
    guarded.lay_out(guard, here, inspected.sglang.version)
    added = guarded.additions(guard, container.INSIDE, {})
    name = container.container_name(run_id, arm.name)
    return container.container(target, runtime, inspected, added, here, log, name)


def command_for(target: Target, arm: Arm, directory: Path) -> str:
    """The command that starts an arm's server, as one shell line, without running it. `directory` stands for
    the run's.

    An image that is not here is not pulled: the version is then read off its tag. Raises StartError where
    what is needed to know the line (sglang, a runtime) is not here, PlanError.
    """
    if target.kind == "attach":
        return f"# attached to {target.url}: nothing is started"
    if target.kind == "embedded":
        return shlex.join(embedded_command(target, arm, port=30000))
    _check_flags(target)
    here = guarded.folders(directory, arm.name)
    port = int(launch.given("port", target.flags) or 30000)
    if target.kind == "process":
        found = process.installed(target)
        guard = check_fits(arm.guard, "process", found.version)
        added = guarded.additions(guard, here, _environment(target))
        return process.launch_line(target, found, port, added).shell()
    runtime = image.find_runtime(target.runtime)
    name = target.image or ""
    if image.local_digest(runtime, name) is None:
        shown = image.Image(name, "unknown", process.Sglang(image.version_in(name), process.MODULE))
    else:
        shown = image.inspect(runtime, name)
    guard = check_fits(arm.guard, "container", shown.sglang.version)
    added = guarded.additions(guard, container.INSIDE, {})
    return shlex.join(container.launch_line(target, runtime, shown, port, "fidelity", added, here))


def _environment(target: Target) -> dict[str, str]:
    return {**os.environ, **launch.preset(target.model).env}


def _check_flags(target: Target) -> None:
    if launch.given("api-key", target.flags) is not None:
        raise PlanError(
            "a server that is started here needs no --api-key, and the plan is kept with the run",
            "leave it out: the server listens on this machine only",
        )
