"""The plans of the mutation table's rows, each as small as can still show what its rows are about."""

from typing import Any

from fidelity.plan import merge


def laid(base: dict[str, Any], *over: dict[str, Any]) -> dict[str, Any]:
    """A plan with others over it, the last one uppermost."""
    for one in over:
        base = merge(base, one)
    return base


FEW: dict[str, Any] = {"prompts": {"count": 6}}
"""Of --quick, where every prompt is corrupt or none proves anything."""
MORE: dict[str, Any] = {"prompts": {"count": 12}}
"""Of --quick, where few prompts show it or the logprobs move and no token flips."""

MANY: dict[str, Any] = {"prompts": {"count": 30}, "thresholds": {"max_rate": 0.1}}
"""The prompts of a default run, where a fault shows late or faintly, or must not show at all."""

HITS: dict[str, Any] = {
    "probes": ["resend", "checkpoint", "decode"],
    "resend": {"suspects": [1], "controls": [33]},
    "decode": {"prompts": 5, "tokens": 160, "sampling": False},
}
"""Cached re-sends at the suspect tail and a control, prefixes from one checkpoint, a short decode."""

SENDS: dict[str, Any] = {**HITS, "probes": ["resend"]}
ONE_LENGTH: dict[str, Any] = merge(SENDS, {"resend": {"controls": []}})
WIDE: dict[str, Any] = {**HITS, "resend": {"suspects": [1, 4], "controls": [33]}}
KV_MODEL: dict[str, Any] = {"target": {"profile": "quiz-kv"}}
RECALL: dict[str, Any] = {"prompts": {"families": ["recall"]}}
LONG_DECODE: dict[str, Any] = {"decode": {"prompts": 6, "tokens": 768, "sampling": False}}
FEW_DECODED: dict[str, Any] = {"decode": {"prompts": 4, "tokens": 96, "sampling": False}}
DECODED: dict[str, Any] = {"probes": ["decode", "checkpoint"], **LONG_DECODE}
LONGER: dict[str, Any] = {"decode": {"prompts": 4, "tokens": 1000, "sampling": False}}
LONG: dict[str, Any] = {**HITS, **LONGER, **KV_MODEL}
"""Answers that end past the rows that the kernel of long-prefill writes."""

BATCHES: dict[str, Any] = {"probes": ["batch", "checkpoint"]}
DRAFTS: dict[str, Any] = {"probes": ["draft"], "target": {"speculative": True}}
CHUNKED: dict[str, Any] = {
    "probes": ["resend", "checkpoint"],
    "resend": {"suspects": [1], "controls": [33], "positions": [64, 128]},
    "target": {"flags": ["--chunked-prefill-size", "128"]},
    **RECALL,
}
"""Hits that resume where the second chunk of their cold send began, and before."""

EXACT: dict[str, Any] = {
    "probes": ["resend"],
    "exact": True,
    "prompts": {"count": 3},
    "resend": {"suspects": [1], "controls": [33], "positions": [64], "warmup_sends": 2, "warmup_tokens": 2},
    "thresholds": {"max_rate": 0.7},
    "target": {"deterministic": True},
}
"""Slow: every token is a forward of its own."""


def guarded(guard: str) -> dict[str, Any]:
    """HITS, without its decode, on a server with this guard alone."""
    return laid(HITS, {"arms": [{"name": guard, "guard": guard}], "skip": ["decode"]})
