"""The guards that are an environment variable: the process bears witness to what it was given."""

from __future__ import annotations

import os

from .marker import Marker

VARIABLES = {
    "ksplit1": {"AITER_KSPLIT": "1"},
    "no-aiter": {"SGLANG_USE_AITER": "0"},
}


def witness(marker: Marker) -> None:
    """Note whether this process has the guard's variables as they should be."""
    wanted = VARIABLES[marker.guard]
    marker.environment = {name: os.environ.get(name) for name in wanted}
    marker.active = marker.environment == wanted
    if not marker.active:
        marker.error("reading the environment", f"it has {marker.environment} where {wanted} was given")
