"""Loaded by every Python process of the server, since this folder is first on PYTHONPATH.

Changes sglang's modules in memory, right after each is imported, so that an unmodified wheel runs on a CPU.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from cpu_standins import absent_packages, cpu_patches, moe_fault

AFTER: dict[str, Callable[[Any], None]] = {**cpu_patches.AFTER, moe_fault.MODULE: moe_fault.patch}
BEFORE: dict[str, Callable[[], Any]] = {"torchvision": cpu_patches.define_torchvision_operators}
_kept_alive: list[Any] = []


class _Hook(importlib.abc.MetaPathFinder):
    """Runs BEFORE[name] ahead of the import of `name`, and AFTER[name] on the module it gives."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in BEFORE:
            _kept_alive.append(BEFORE.pop(name)())
            return None
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: types.ModuleType) -> None:
            execute(module)
            AFTER[name](module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


absent_packages.install()
sys.meta_path.insert(0, _Hook())
