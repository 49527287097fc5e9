"""What made a table: the machine in words, the package's own files, and the commit they are of."""

import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from fidelity import __version__
from fidelity.paths import data_dir

PACKAGE = Path(__file__).parents[1]


@cache
def machine() -> str:
    """Cores and software; no name of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kind = f"{platform.system()} on {platform.machine()}"
    return f"{cores} cores{_model()}, {kind}, Python {platform.python_version()}, NumPy {np.__version__}"


@cache
def sources() -> str:
    """Twelve hexadecimal digits, the same for the same code, weights and prompts."""
    digest = hashlib.sha256()
    for folder in (PACKAGE, data_dir("prompts")):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".npz", ".json", ".yaml"):
                digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def version_of(made: str) -> str:
    """The version, and the commit where the package here is of one and is what `made` the runs."""
    named = f"version {__version__}, sources {made}"
    if made != sources():
        return named
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", str(PACKAGE))
    return f"{named}, commit {commit}{' with changes' if changed else ''}" if commit else named


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _model() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f" of {names[0]}" if names and names[0] else ""
