"""The guards `splitk` and `unsplit`: aiter's stage-1 MoE GEMM, called with a split of K that is summed right.

With one K tile per split the kernel does not zero the buffer its splits add into. Only block-scaled fp8 calls
with a split are looked at; every other call passes through with the very arguments it came with.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .marker import Marker
from .wrapping import is_wrapped, replace

MODULE = "aiter.fused_moe"
FUNCTION = "ck_moe_stage1"
BLOCK_SCALE = ("per_1x128", "per_128x128")
# Where each parameter stood in every version seen; a readable signature is believed instead.
POSITIONS = {"hidden_states": 0, "block_m": 8, "kernelName": 11, "quant_type": 13, "splitk": 15}
_TILE = re.compile(r"(?<!\d)\d+x\d+x\d+x(\d+)(?!\d)")

Choose = Callable[[int, int, int], int]


def k_per_block(kernel_name: str, block_m: int | None) -> int:
    """Elements of K in one tile: the fourth number in the kernel's name (256x16x128x256), else 256 for blocks
    of at most 16 rows and 128 for larger ones, as the kernels without a name are built."""
    named = _TILE.search(kernel_name)
    if named:
        return int(named.group(1))
    return 256 if block_m is None or block_m <= 16 else 128


def safe_split(k: int, splitk: int, tile: int) -> int:
    """`splitk` where each split owns two tiles or more; else the largest smaller split that divides K into
    whole tiles and leaves each split at least two; 1 (unsplit) where there is none."""
    if k // (splitk * tile) >= 2:
        return splitk
    fitting = (split for split in range(splitk - 1, 1, -1) if k % (split * tile) == 0)
    return next((split for split in fitting if k // (split * tile) >= 2), 1)


def never_split(_k: int, _splitk: int, _tile: int) -> int:
    """1, whatever was asked."""
    return 1


def patch(module: types.ModuleType, marker: Marker, choose: Choose) -> None:
    """Wrap `ck_moe_stage1` in the imported `aiter.fused_moe`. Raises LookupError for a function without the
    parameters that the guard reads."""
    original = getattr(module, FUNCTION)
    if is_wrapped(original):
        return
    replace(module, FUNCTION, _guarded(original, marker, choose), marker.guard)
    # Configurations made before hold the unwrapped function in a partial.
    clear = getattr(getattr(module, "get_2stage_cfgs", None), "cache_clear", None)
    if clear is not None:
        clear()
    marker.wraps(f"{MODULE}.{FUNCTION}", original)


def _guarded(original: Callable[..., Any], marker: Marker, choose: Choose) -> Callable[..., Any]:
    positions, defaults = _parameters(original)

    def argument(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        at = positions[name]
        return args[at] if at < len(args) else defaults.get(name)

    def split_for(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
        """The split to pass instead of the one asked for; None to leave the call alone."""
        asked = _whole(argument("splitk", args, kwargs))
        quant_type = argument("quant_type", args, kwargs)
        if asked is None or asked <= 1 or quant_name(quant_type) not in BLOCK_SCALE:
            marker.call()
            return None
        sizes = argument("hidden_states", args, kwargs).shape
        rows, k = int(sizes[0]), int(sizes[-1])
        kernel = str(argument("kernelName", args, kwargs) or "")
        block_m = argument("block_m", args, kwargs)
        split = choose(k, asked, k_per_block(kernel, block_m))
        shape = f"M={rows} K={k} block_m={block_m} kernel={kernel or 'default'} splitk={asked}->{split}"
        marker.call(shape, lowered=split != asked)
        return None if split == asked else split

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            split = split_for(args, kwargs)
        except Exception as exc:
            marker.error(f"choosing a split for {FUNCTION}", exc)
            split = None
        if split is None:
            return original(*args, **kwargs)
        at = positions["splitk"]
        if "splitk" in kwargs or at >= len(args):
            return original(*args, **{**kwargs, "splitk": split})
        return original(*args[:at], split, *args[at + 1 :], **kwargs)

    return guarded


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """Positions and defaults of the parameters that the guard reads."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return POSITIONS, {}
    names = list(parameters)
    missing = [name for name in POSITIONS if name not in parameters]
    if missing and not any(one.kind is one.VAR_POSITIONAL for one in parameters.values()):
        raise LookupError(f"{FUNCTION}{inspect.signature(function)} has no {', '.join(missing)}")
    if missing:
        return POSITIONS, {}
    defaults = {name: parameters[name].default for name in POSITIONS}
    given = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}
    return {name: names.index(name) for name in POSITIONS}, given


def _whole(value: Any) -> int | None:
    """An integer of any kind; a tuned row may hold it as a float. None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        return None


def quant_name(quant_type: Any) -> str:
    return str(getattr(quant_type, "name", quant_type)).rsplit(".", 1)[-1]
