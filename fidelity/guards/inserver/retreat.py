"""The guard `retreat`: at least two prompt tokens are computed, whatever the cache holds.

Where sglang asks `Req` how long a cached prefix may be (0.5.13 and later), the answer is lowered, and the
cache itself then finds the checkpoint before. Earlier versions ask nothing: there the match of the hybrid
cache is led back to a checkpoint that leaves two tokens or more.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from .late import after_import
from .marker import Marker
from .wrapping import is_wrapped, replace

REQUESTS = "sglang.srt.managers.schedule_batch"
OLD_CACHE = "sglang.srt.mem_cache.mamba_radix_cache"
LIMIT = "_compute_max_prefix_len"
MATCH = "_match_post_processor"
MIN_TAIL = 2


def patch(module: types.ModuleType, marker: Marker) -> None:
    """Wrap the seam of this version, given the imported `schedule_batch`."""
    request = module.Req
    if not hasattr(request, LIMIT):
        marker.waits_for = OLD_CACHE
        after_import(OLD_CACHE, lambda found: _patch_old(found, marker))
        return
    original = getattr(request, LIMIT)
    if is_wrapped(original):
        return

    @functools.wraps(original)
    def guarded(self: Any, input_len: int, *args: Any, **kwargs: Any) -> Any:
        limit = original(self, input_len, *args, **kwargs)
        try:
            longest = max(0, min(limit, input_len - MIN_TAIL))
            marker.call(lowered=longest < limit)
            return longest
        except Exception as exc:
            marker.error(f"lowering {LIMIT}", exc)
            return limit

    replace(request, LIMIT, guarded, marker.guard)
    marker.wraps(f"{REQUESTS}.Req.{LIMIT}", original)


def _patch_old(module: types.ModuleType, marker: Marker) -> None:
    try:
        cache = module.MambaRadixCache
        original = getattr(cache, MATCH)
        if is_wrapped(original):
            return
        guarded = _guarded_match(original, marker)
        replace(cache, MATCH, guarded, marker.guard)
        marker.wraps(f"{OLD_CACHE}.MambaRadixCache.{MATCH}", original)
    except Exception as exc:
        marker.error("finding where this version matches a prefix", exc)


def _guarded_match(original: Any, marker: Marker) -> Any:
    @functools.wraps(original)
    def guarded(self: Any, params: Any, value: Any, last_node: Any, best_value_len: int) -> Any:
        kept = (value, last_node, best_value_len)
        try:
            kept = retreat(self.root_node, params, value, last_node, best_value_len)
            marker.call(lowered=kept[1] is not last_node)
        except Exception as exc:
            marker.error(f"leading {MATCH} back", exc)
        return original(self, params, *kept)

    return guarded


def retreat(root: Any, params: Any, value: Any, node: Any, matched: int) -> tuple[Any, Any, int]:
    """(value, node, matched) of the nearest earlier checkpoint where this match leaves under two tokens; the
    root and 0 where there is none; unchanged where the state is not restored or the length is not known.

    `value` has the cache slots of each matched node in order; the first `matched` end at a node with a state.
    """
    length = _length(params.req)
    restored = params.cow_mamba and matched > 0 and node.mamba_value is not None
    if not restored or length is None or length - sum(map(len, value[:matched])) >= MIN_TAIL:
        return value, node, matched
    earlier, count = node.parent, matched - 1
    while count > 0 and earlier is not None and earlier.mamba_value is None:
        earlier, count = earlier.parent, count - 1
    # A match cut at its state tells the cache of no branch; a longer one still must.
    whole = len(value) == matched
    if count <= 0 or earlier is None:
        return (value[:0] if whole else value), root, 0
    return (value[:count] if whole else value), earlier, count


def _length(req: Any) -> int | None:
    """Tokens of the request; None before they are known."""
    for name in ("full_untruncated_fill_ids", "fill_ids"):
        ids = getattr(req, name, None)
        if ids:
            return len(ids)
    ask = getattr(req, "get_fill_ids", None)
    ids = ask() if ask is not None else None
    return len(ids) if ids else None
