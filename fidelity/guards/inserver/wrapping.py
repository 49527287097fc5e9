"""Put a function in another's place, once."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

SENTINEL = "__fidelity_guard__"


def is_wrapped(function: object) -> bool:
    """Is it, or does it wrap, a function that a guard put in place?"""
    seen = 0
    while function is not None and seen < 50:
        if SENTINEL in getattr(function, "__dict__", {}):
            return True
        function = getattr(function, "__wrapped__", None)
        seen += 1
    return False


def replace(owner: Any, name: str, guarded: Callable[..., Any], guard: str) -> None:
    """Bind `guarded` where `owner.name` was; a module's function also wherever it was imported by name."""
    original = getattr(owner, name)
    setattr(guarded, SENTINEL, guard)
    setattr(owner, name, guarded)
    if not isinstance(owner, types.ModuleType):
        return
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        for bound, value in list(names.items()):
            if value is original:
                names[bound] = guarded
