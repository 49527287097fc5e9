"""What a server says about itself, reduced to what decides which sends prove what."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fidelity.engines.secrets import scrub
from fidelity.engines.versions import release
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

PROMPT_END = "prompt end"
"""The strategy of a server of which this is known: a longer prompt resumes where one before it ended. What
an identical re-send resumes from is not."""

EXTRA_BUFFER_BY_DEFAULT = (0, 5, 14)
"""The release from which the strategy `auto` can become extra_buffer; before, it was always no_buffer."""

ROUTED_RANK = (0, 5, 13)
"""The release from which the pinned DP rank is called `routed_dp_rank`."""


@dataclass(frozen=True)
class ServerFacts:
    """`grid` is in tokens; `guards` is None where the server cannot say; `fault_region` is the largest batch
    the fault reaches by the server's own shapes, 0 when it reaches none, None when the shapes are not
    known; `region_source` begins the sentence that tells where it comes from."""

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
    region_source: str = "by its shapes the server"
    simulated: bool = False
    notes: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    """What this server or its API cannot give, with the reason in words, by what probes need: `scores` (the
    logprobs of prompt tokens by a clean prefill), `list` (a list-valued request), `stream`, `tools` (a chat
    endpoint that parses tool calls), `logprobs`, `ids` (prompts as token ids, which can be cut),
    `cached_tokens`, `models` (names to be known by), `apart` (a cold send that does not run a hit's step)."""
    refuses_unknown_ids: bool = False
    """Does it refuse ids outside its vocabulary before it computes anything? Then ids can always be sent."""
    max_top_k: int | None = None
    """The most logprobs of a token that it tells; None where it sets no limit or does not say."""
    cold_shares_step: str | None = None
    """Why a cold send and a hit of the same prompt run the same last step, so that comparing them sees no
    fault of it; None where a cold send computes its prompt at once."""
    cached_tokens_flag: str = ""
    """The flag without which answers do not tell their cached tokens, where there is one."""
    salt: int | None = None
    """Where cold sends are told apart by a salt in the prompt: the tokens before its end, at most, which may
    come from the cache; None where the cache has namespaces."""
    raised_top_k: int = 200
    """Logprobs of a token to ask for where the usual number leaves too much of it open."""
    grid_known: bool = True
    """Does the server tell its grid? Where not, it is found by a few sends, and until then `grid` and
    `strategy` are assumed."""
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names under which the model is served, and its path."""
        models = self.raw.get("models") or []
        told = (self.model, self.raw.get("served_model_name"), self.raw.get("model_path"), *models)
        return list(dict.fromkeys(name for name in told if isinstance(name, str)))

    @property
    def dp_key(self) -> str:
        """What this release calls the DP rank that a request is pinned to."""
        known = release(self.version)
        return "data_parallel_rank" if known is not None and known < ROUTED_RANK else "routed_dp_rank"


def read_facts(server_info: dict[str, Any], model_info: dict[str, Any]) -> ServerFacts:
    """Facts from sglang's `/server_info` and `/model_info`, of a real server or the embedded engine."""
    info = scrub({**model_info, **server_info})
    embedded = info.get("engine") == EMBEDDED
    page = _int(info.get("page_size"), 1)
    hybrid = _is_hybrid(info)
    chunk = max(_int(info.get("mamba_cache_chunk_size"), CHUNK), page)
    version = str(info.get("version", "unknown")).removeprefix(f"{EMBEDDED}/")
    strategy = info.get("mamba_radix_cache_strategy") or info.get("mamba_scheduler_strategy") or "auto"
    notes = []
    if hybrid and strategy == "auto":
        strategy = _resolve(info, version, page)
        notes.append(f"the server reports the strategy as 'auto'; {strategy} is assumed until the first hit")
    return ServerFacts(
        engine=EMBEDDED if embedded else "sglang",
        version=version,
        model=str(info.get("served_model_name") or info.get("model_path") or "unknown"),
        grid=math.lcm(chunk, page) if hybrid else page,
        page_size=page,
        strategy=str(strategy) if hybrid else "attention only",
        prefix_cache=not info.get("disable_radix_cache", False),
        tp=_int(info.get("tp_size"), 1),
        dp=_int(info.get("dp_size"), 1),
        vocab_size=_int(info.get("vocab_size"), 0) or None,
        guards=_guards(info) if embedded else None,
        fault=info.get("fault") if embedded else None,
        fault_region=_fault_region(info) if embedded else None,
        simulated=embedded,
        notes=tuple(notes),
        raw=info,
    )


def _resolve(info: dict[str, Any], version: str, page: int) -> str:
    """What `auto` becomes, by the release's own rule; releases up to 0.5.18 do not say."""
    known = release(version)
    old = known is not None and known < EXTRA_BUFFER_BY_DEFAULT
    overlap = not info.get("disable_overlap_schedule", False)
    return "no_buffer" if old or not (overlap or page > 1) else "extra_buffer"


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
