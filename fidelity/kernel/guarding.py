"""Put a guard on an operator for a while, exactly as a server gets it, and take it off again."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from fidelity.guards.inserver.marker import Marker
from fidelity.guards.inserver.split_k import FUNCTION, Choose, never_split, patch, safe_split
from fidelity.kernel.work import GuardProof

CHOICES: dict[str, Choose | None] = {"none": None, "splitk": safe_split, "unsplit": never_split}


@contextmanager
def guarded(module: Any, marker: Marker) -> Iterator[None]:
    """`module` with the guard that `marker` is named for; `none` leaves it alone."""
    choose = CHOICES[marker.guard]
    if choose is None:
        yield
        return
    original = getattr(module, FUNCTION)
    patch(cast(types.ModuleType, module), marker, choose)
    wrapped = getattr(module, FUNCTION)
    try:
        yield
    finally:
        setattr(module, FUNCTION, original)
        for other in list(sys.modules.values()):
            names = getattr(other, "__dict__", None)
            if type(names) is dict:
                names.update({name: original for name, value in list(names.items()) if value is wrapped})
        module.get_2stage_cfgs.cache_clear()


def proof(marker: Marker) -> GuardProof:
    shapes = {shape: calls for shape, (calls, _) in marker.shapes.items()}
    return GuardProof(marker.guard, marker.wrapped, marker.calls, marker.lowered, shapes, list(marker.errors))
