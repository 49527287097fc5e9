"""Where a server process enters: as a plugin of sglang, or by sitecustomize where it has no plugins.

FIDELITY_GUARD            the guard's name; unset or "none": nothing is done and no marker is written
FIDELITY_GUARD_MARKERS    the folder for this process's marker
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from . import block_m, environment, retreat, split_k
from .late import after_import
from .marker import Marker, say

GUARD = "FIDELITY_GUARD"
MARKERS = "FIDELITY_GUARD_MARKERS"

PATCHES: dict[str, tuple[str, Callable[[ModuleType, Marker], None]]] = {
    "splitk": (split_k.MODULE, lambda module, marker: split_k.patch(module, marker, split_k.safe_split)),
    "unsplit": (split_k.MODULE, lambda module, marker: split_k.patch(module, marker, split_k.never_split)),
    "block-m32": (split_k.MODULE, block_m.patch),
    "retreat": (retreat.REQUESTS, retreat.patch),
}

_marker: Marker | None = None


def load(*, announce: bool = True) -> None:
    """Set the guard up in this process, once. Never raises.

    Nothing is imported for it: aiter and sglang's modules are changed when the server imports them.
    `announce` writes the marker at once; without it the process has none until the guard acts, since
    sitecustomize also runs in processes that are no part of the server.
    """
    global _marker
    try:
        if _marker is None:
            guard, directory = os.environ.get(GUARD, ""), os.environ.get(MARKERS, "")
            if guard in ("", "none") or not directory:
                return
            _marker = Marker(guard, Path(directory))
            _set_up(_marker)
        if announce:
            _marker.write()
    except Exception as exc:
        say(f"the guard could not be loaded: {type(exc).__name__}: {exc}")


def _set_up(marker: Marker) -> None:
    if marker.guard in environment.VARIABLES:
        environment.witness(marker)
        return
    if marker.guard not in PATCHES:
        marker.error("loading", f"there is no guard '{marker.guard}' for a server's processes")
        return
    module, patch = PATCHES[marker.guard]

    def apply(found: ModuleType) -> None:
        try:
            patch(found, marker)
        except Exception as exc:
            marker.error(f"changing {module}", exc)

    marker.waits_for = module
    after_import(module, apply)
