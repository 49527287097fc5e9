"""Loads the sitecustomize that this one hides, then the guard, in every Python process."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path


def _load_guard() -> None:
    try:
        from fidelity_guard.load import load  # type: ignore[import-not-found]

        load(announce=False)
    except Exception as exc:
        sys.stderr.write(f"fidelity: the guard could not be loaded: {type(exc).__name__}: {exc}\n")


def _load_hidden() -> None:
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


# The guard comes last, so that its finder is asked before any that the hidden one puts first.
try:
    _load_hidden()
finally:
    _load_guard()
