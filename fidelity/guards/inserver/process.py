"""What this process is: its title, its part in the server, the versions it runs."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from pathlib import Path

SCHEDULER = "scheduler"
_SECRET = re.compile(r"-.*(key|password|secret|[-_]token)")
_PACKAGES = {"sglang": ("sglang",), "aiter": ("amd-aiter", "aiter"), "torch": ("torch",)}


def process_title() -> str:
    """The command line as the system shows it, which is what setproctitle overwrites; empty where unknown."""
    try:
        line = Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return ""
    return line.replace(b"\0", b" ").decode(errors="replace").strip()


def command_line() -> list[str]:
    """The arguments this process was started with, values that may be secret hidden."""
    hidden = []
    secret = False
    for word in getattr(sys, "orig_argv", sys.argv):
        flag, equals, _ = word.partition("=")
        names_secret = _SECRET.fullmatch(flag) is not None
        hidden.append("***" if secret else f"{flag}=***" if names_secret and equals else word)
        secret = names_secret and not equals
    return hidden


def role(title: str, *, called: bool) -> str:
    """What this process is to the server: scheduler, detokenizer, launcher, another name, or "other".

    sglang names its children by title; before that a spawned child knows its own target function, such as
    run_scheduler_process. Only a process that runs the model or schedules requests calls a wrapped object.
    """
    if title.startswith("sglang::"):
        name = title.removeprefix("sglang::")
        return SCHEDULER if name.startswith(SCHEDULER) else name.split()[0].split(":")[0]
    process = sys.modules.get("multiprocessing.process")
    child = process.parent_process() is not None if process else False
    target = getattr(process.current_process(), "_target", None) if process else None
    name = getattr(target, "__name__", "")
    if called:
        return SCHEDULER
    if name.startswith("run_") and name.endswith("_process"):
        return name.removeprefix("run_").removesuffix("_process")
    return "other" if child else "launcher"


@functools.cache
def versions() -> dict[str, str | None]:
    """Python's version and those of the packages that matter; None for one that is not installed."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package, names in _PACKAGES.items():
        found[package] = next(filter(None, map(_version, names)), None)
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except Exception:  # a damaged installation is not the guard's business
        return None
