"""What a server is started with so that its processes load a guard: a folder and an environment."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from fidelity import __version__
from fidelity.guards.inserver.load import GUARD, MARKERS
from fidelity.guards.registry import Guard, version_numbers

PACKAGE = "fidelity_guard"
ENTRY_POINT = f"[sglang.srt.plugins]\n{PACKAGE} = {PACKAGE}.load:load\n"
PLUGINS_SINCE = (0, 5, 13)
_SOURCE = Path(__file__).parent / "inserver"
_SITE = "sitecustomize.py"


def write_folder(directory: Path, sglang_version: str | None = None) -> Path:
    """Lay out the folder for PYTHONPATH: the modules, the plugin's entry point and, for an unknown version or
    one before plugins, a sitecustomize. It serves every guard: the environment names the one to load.

    Raises OSError where `directory` cannot be written.
    """
    package = directory / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for module in _SOURCE.glob("*.py"):
        if module.name != _SITE:
            shutil.copyfile(module, package / module.name)
    about = directory / f"{PACKAGE}-{__version__}.dist-info"
    about.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {__version__}\n"
    (about / "METADATA").write_text(metadata, encoding="utf-8")
    (about / "entry_points.txt").write_text(ENTRY_POINT, encoding="utf-8")
    numbers = version_numbers(sglang_version)
    if numbers is None or numbers < PLUGINS_SINCE:
        shutil.copyfile(_SOURCE / _SITE, directory / _SITE)
    return directory


def environment(guard: Guard, folder: Path, markers: Path, existing: Mapping[str, str]) -> dict[str, str]:
    """The variables to set for one arm. `existing` is the environment that the server has without them, and
    `folder` and `markers` are paths as the server sees them.

    An arm without code in the server gets the guard "none": it disarms one that `existing` brings along.
    """
    if not guard.in_processes:
        return {GUARD: "none", MARKERS: str(markers)}
    given = {GUARD: guard.name, MARKERS: str(markers), **dict(guard.environment)}
    before = existing.get("PYTHONPATH", "")
    given["PYTHONPATH"] = os.pathsep.join([str(folder), before] if before else [str(folder)])
    allowed = [name.strip() for name in existing.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and PACKAGE not in allowed:
        given["SGLANG_PLUGINS"] = ",".join([*allowed, PACKAGE])
    return given
