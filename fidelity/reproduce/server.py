"""The command line that starts an arm's server again, to be shown beside the requests."""

import shlex
from pathlib import Path

from fidelity.errors import FidelityError
from fidelity.manifest import Manifest
from fidelity.plan import Arm, Target
from fidelity.servers.choose import command_for

PORT = 30000


def server_command(manifest: Manifest, arm_name: str, directory: Path, *, look: bool = False) -> str:
    """One line for a shell; empty where a server was attached to. For a sglang server, only with `look` is
    its environment or image looked at; else, or where it is not here, the command that prints it."""
    target = manifest.plan.target
    arm = next((one for one in manifest.plan.arms if one.name == arm_name), Arm(name=arm_name))
    if target.kind == "attach":
        return ""
    if target.kind == "embedded":
        return serve_command(target, arm, manifest.plan.seed)
    if look:
        try:
            return command_for(target, arm, directory)
        except FidelityError as exc:
            return f"{_print_command(manifest)}  # it cannot be told here: {exc.message}"
    return _print_command(manifest)


def serve_command(target: Target, arm: Arm, seed: int) -> str:
    """`fidelity serve` for an arm on the embedded engine."""
    given = {
        "port": PORT,
        "profile": target.profile,
        "fault": target.fault,
        "guard": arm.guard,
        "strategy": target.strategy,
        "cu": target.cu,
        "noise": target.noise,
        "seed": seed,
        "page-size": target.page_size,
    }
    flags = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    switches = {"--speculative": target.speculative, "--deterministic": target.deterministic}
    return shlex.join(["fidelity", "serve", *flags, *(name for name, on in switches.items() if on)])


def _print_command(manifest: Manifest) -> str:
    words = manifest.argv[1:]
    if words[:1] != ["run"] or "--resume" in words:
        return "as the run's `fidelity run --print-command` tells"
    return shlex.join(["fidelity", "run", "--print-command", *words[1:]])
