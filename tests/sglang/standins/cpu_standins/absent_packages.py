"""Stand-ins for packages that sglang imports and never calls when it serves on a CPU.

Importing a name from one works, calling it raises, so nothing turns silently into a no-op. Sub-modules that
are not listed stay missing: that is what sglang's own "is it installed?" checks look at.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, NoReturn

PACKAGES = {
    "IPython",
    "IPython.display",
    "flashinfer",
    "flashinfer.prefill",
    "flashinfer.sampling",
    "soundfile",
}


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{self._name} is a stand-in: the real package is not installed")


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name in PACKAGES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    """Put the finder last on the path, so that a real package always wins."""
    sys.meta_path.append(_Finder())
