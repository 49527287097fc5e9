"""The guard `block-m32`: aiter's default block-scaled MoE configurations, with blocks of at least 32 rows.

A block of 32 rows has K tiles half as deep, so that the splits which own one tile at 16 rows own two. Tokens
are sorted into blocks before the GEMMs, so the size is changed where both read it, in the configuration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from .marker import Marker
from .split_k import BLOCK_SCALE, MODULE, quant_name
from .wrapping import is_wrapped, replace

FUNCTION = "get_2stage_cfgs"
ROWS = 32
_QUANT = "q_type"


def patch(module: types.ModuleType, marker: Marker) -> None:
    """Wrap `get_2stage_cfgs` in the imported `aiter.fused_moe`. Raises LookupError for another signature."""
    original = getattr(module, FUNCTION)
    if is_wrapped(original):
        return
    signature = inspect.signature(original)
    if _QUANT not in signature.parameters:
        raise LookupError(f"{FUNCTION}{signature} has no {_QUANT}")
    guarded = _guarded(original, signature, marker)
    for name in ("cache_clear", "cache_info", "cache_parameters"):
        if hasattr(original, name):
            setattr(guarded, name, getattr(original, name))
    replace(module, FUNCTION, guarded, marker.guard)
    marker.wraps(f"{MODULE}.{FUNCTION}", original)


def _guarded(
    original: Callable[..., Any], signature: inspect.Signature, marker: Marker
) -> Callable[..., Any]:
    def enlarged(config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        stage = getattr(config.stage1, "keywords", {})
        # A kernel with a name is built for its own block size.
        small = quant_name(given.arguments[_QUANT]) in BLOCK_SCALE and config.block_m < ROWS
        if config.run_1stage or stage.get("kernelName") or not small:
            marker.call()
            return config
        marker.call(f"block_m={config.block_m}->{ROWS}", lowered=True)
        return dataclasses.replace(config, block_m=ROWS)

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        config = original(*args, **kwargs)
        try:
            return enlarged(config, args, kwargs)
        except Exception as exc:
            marker.error(f"enlarging the blocks of {FUNCTION}", exc)
            return config

    return guarded
