"""What a server says about itself, reduced to what decides which sends prove what."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from fidelity.shapes import largest_affected

CHUNK = 64
"""Tokens of one linear-attention chunk: recurrent states exist at multiples of it."""

HYBRID_TYPES = (
    "qwen3_next",
    "qwen3_5",
    "qwen4",
    "nemotron_h",
    "falcon_h1",
    "kimi_linear",
    "jet",
    "lfm2",
    "mamba",
)
EMBEDDED = "fidelity-embedded"

HIDDEN = "(hidden)"
SECRET_KEY = re.compile(r"(?i)(^|[_-])(key|secret|password|passwd|credentials?|token)$")
SECRET_FLAG = re.compile(r"(?i)(--[\w-]*(?:key|secret|password|token)[ =]+)\S+")


@dataclass(frozen=True)
class ServerFacts:
    """`grid` is in tokens; `guards` is None where the server cannot say; `fault_region` is the largest batch
    the fault reaches by the server's own shapes, 0 when it reaches none, None when the shapes are not
    known."""

    engine: str
    version: str
    model: str
    grid: int = CHUNK
    page_size: int = 1
    strategy: str = "extra_buffer"
    prefix_cache: bool = True
    tp: int = 1
    dp: int = 1
    vocab_size: int | None = None
    guards: tuple[str, ...] | None = None
    fault: str | None = None
    fault_region: int | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict)


def read_facts(server_info: dict[str, Any], model_info: dict[str, Any]) -> ServerFacts:
    """Facts from sglang's `/server_info` and `/model_info`, of a real server or the embedded engine."""
    info = scrub({**model_info, **server_info})
    embedded = info.get("engine") == EMBEDDED
    page = _int(info.get("page_size"), 1)
    hybrid = _is_hybrid(info)
    chunk = max(_int(info.get("mamba_cache_chunk_size"), CHUNK), page)
    strategy = info.get("mamba_radix_cache_strategy") or info.get("mamba_scheduler_strategy") or "auto"
    notes = []
    if hybrid and strategy == "auto":
        notes.append("the server reports the strategy as 'auto'; extra_buffer is assumed until the first hit")
        strategy = "extra_buffer"
    return ServerFacts(
        engine=EMBEDDED if embedded else "sglang",
        version=str(info.get("version", "unknown")).removeprefix(f"{EMBEDDED}/"),
        model=str(info.get("served_model_name") or info.get("model_path") or "unknown"),
        grid=math.lcm(chunk, page) if hybrid else page,
        page_size=page,
        strategy=str(strategy) if hybrid else "attention only",
        prefix_cache=not info.get("disable_radix_cache", False),
        tp=_int(info.get("tp_size"), 1),
        dp=_int(info.get("dp_size"), 1),
        vocab_size=info.get("vocab_size"),
        guards=_guards(info) if embedded else None,
        fault=info.get("fault") if embedded else None,
        fault_region=_fault_region(info) if embedded else None,
        simulated=embedded,
        notes=tuple(notes),
        raw=info,
    )


def scrub(value: Any) -> Any:
    """The same data with every secret replaced: by key name, and after a flag in a launch command."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if item and SECRET_KEY.search(str(key)) else scrub(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [scrub(item) for item in value]
    return SECRET_FLAG.sub(rf"\1{HIDDEN}", value) if isinstance(value, str) else value


def _is_hybrid(info: dict[str, Any]) -> bool:
    says = info.get("uses_mamba_radix_cache")
    if says is not None:
        return bool(says)
    kind = str(info.get("model_type", ""))
    return not kind or any(kind.startswith(name) for name in HYBRID_TYPES)


def _guards(info: dict[str, Any]) -> tuple[str, ...]:
    guard = info.get("guard") or ()
    names = [guard] if isinstance(guard, str) else list(guard)
    return tuple(name for name in names if name != "none")


def _fault_region(info: dict[str, Any]) -> int | None:
    shape = info.get("moe_shape")
    if not isinstance(shape, dict) or "cu" not in info:
        return None
    return largest_affected(
        hidden=shape["hidden"],
        intermediate=shape["intermediate"],
        topk=shape["topk"],
        experts=shape["experts"],
        tile=shape["tile"],
        compute_units=info["cu"],
    )


def _int(value: Any, default: int) -> int:
    return int(value) if isinstance(value, int | float) and value else default
