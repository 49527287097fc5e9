"""Change a module as soon as it is imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

Action = Callable[[types.ModuleType], None]


def after_import(name: str, action: Action) -> bool:
    """Run `action` on the module `name`: now if it is loaded (then True), else right after each import of it,
    before its importer sees it. `action` must not raise."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    sys.meta_path.insert(0, _After(name, action))
    return module is not None


class _After(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and adds the action to its execution."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module
        action = self.action

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        # Editable installs bring finders of their own, so PathFinder alone would not do.
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None
