"""Loaded by every Python process of the server, since this folder is first on PYTHONPATH.

Changes sglang's modules in memory, right after each is imported, so that an unmodified wheel runs on a CPU,
and its MoE can be made to fail; on a GPU (h200/) only the latter.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from cpu_standins import absent_packages, cpu_patches, moe_fault

AFTER: dict[str, Callable[[Any], None]] = {moe_fault.MODULE: moe_fault.patch}
BEFORE: dict[str, Callable[[], Any]] = {}
if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    AFTER |= cpu_patches.AFTER
    BEFORE["torchvision"] = cpu_patches.define_torchvision_operators
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
