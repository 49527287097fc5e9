"""What a vLLM server says about itself: `/version`, `/v1/models`, `/metrics`, and `/server_info` where it
runs in development mode."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from fidelity.engines.facts import ServerFacts
from fidelity.engines.prometheus import Sample, scrape
from fidelity.engines.wire import first_found
from fidelity.errors import NotWhatWasAskedError

DEFAULT_BLOCK = 16
DEFAULT_MAX_LOGPROBS = 20
ENOUGH_LOGPROBS = 200
"""As many as are asked for where fewer leave a distribution open."""

CACHE_INFO = "vllm:cache_config_info"
CACHED_TOKENS_FLAG = "--enable-prompt-tokens-details"

SHARED_STEP = (
    "this vLLM splits a hybrid model's prefill at the last block boundary (mamba_cache_mode 'align'): a cold "
    "send and a hit run the same last step, and agree whatever it does"
)

LACKS = {
    "list": "vLLM takes the prompts of a list as requests of their own",
    "stream": "streamed answers are read from sglang's API alone",
    "tools": "tool calls are asked for in sglang's words alone",
}


def served(client: httpx.Client) -> dict[str, Any] | None:
    """The first model of `/v1/models` that vLLM itself owns; None where there is none. Raises
    UnreachableError, NotWhatWasAskedError."""
    models = first_found(client, ("/v1/models",))
    cards = models.get("data") if models else None
    for card in cards if isinstance(cards, list) else []:
        if isinstance(card, dict) and card.get("owned_by") == "vllm":
            return card
    return None


def version(client: httpx.Client) -> str | None:
    """What `/version` tells. Raises UnreachableError, NotWhatWasAskedError."""
    told = (first_found(client, ("/version",)) or {}).get("version")
    return told if isinstance(told, str) else None


def facts(client: httpx.Client) -> ServerFacts:
    """What the server says of itself. Raises UnreachableError, NotWhatWasAskedError."""
    card, release = served(client), version(client)
    if card is None or release is None:
        raise NotWhatWasAskedError(
            f"{client.base_url} answers, but not as a vLLM server (no /version, or no model of its own in "
            "/v1/models)",
            "give the address of the vLLM server itself, not of a router",
        )
    told = first_found(client, ("/server_info?config_format=json",)) or {}
    return read_facts(release, card, scrape(client), told)


def read_facts(
    release: str, card: Mapping[str, Any], samples: Sequence[Sample], server_info: Mapping[str, Any]
) -> ServerFacts:
    """Facts from the card of the model, the samples of `/metrics` and, where there is one, the JSON of
    `/server_info`."""
    config = _part(server_info, "vllm_config")
    model, parallel = _part(config, "model_config"), _part(config, "parallel_config")
    labels = [dict(sample.labels) for sample in samples if sample.name == CACHE_INFO]
    cache = {**(labels[0] if labels else {}), **_part(config, "cache_config")}
    mode = cache.get("mamba_cache_mode", "none")
    hybrid = mode not in ("none", "None", None)
    cached = str(cache.get("enable_prefix_caching", True)) == "True"
    block = _number(cache, "cache_hit_alignment_tokens") or _number(cache, "block_size")
    notes = []
    if block is None:
        block = DEFAULT_BLOCK
        notes.append(f"neither /metrics nor /server_info tells the block size: {block} tokens are assumed")
    ranks = max(_number(parallel, "data_parallel_size") or 1, len(labels))
    limit = model.get("max_logprobs", DEFAULT_MAX_LOGPROBS)
    if 0 <= limit < ENOUGH_LOGPROBS:
        notes.append(
            f"at most {limit} logprobs of a token are told: where these leave too much of a distribution "
            f"open, nothing passes (--max-logprobs {ENOUGH_LOGPROBS} would do)"
        )
    speculative = _part(config, "speculative_config").get("method")
    shared = SHARED_STEP if hybrid and cached else None
    return ServerFacts(
        engine="vllm",
        version=release,
        model=str(card.get("id", "unknown")),
        grid=block,
        page_size=block,
        strategy="align" if hybrid else "attention only",
        prefix_cache=cached,
        tp=_number(parallel, "tensor_parallel_size") or 1,
        dp=ranks,
        notes=(*notes, *([shared] if shared else [])),
        lacks={**LACKS, "apart": shared} if shared else LACKS,
        refuses_unknown_ids=True,
        max_top_k=None if limit == -1 else int(limit),
        cold_shares_step=shared,
        cached_tokens_flag=CACHED_TOKENS_FLAG,
        raw={
            "model_path": card.get("root"),
            "served_model_name": card.get("id"),
            "context_length": card.get("max_model_len"),
            "page_size": block,
            "chunked_prefill_size": _part(config, "scheduler_config").get("max_num_batched_tokens"),
            "speculative_algorithm": speculative,
            "quantization": model.get("quantization"),
            "dtype": model.get("dtype"),
            "max_logprobs": limit,
            "logprobs_mode": model.get("logprobs_mode"),
            "cache_config": cache,
        },
    )


def _part(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def _number(data: Mapping[str, Any], name: str) -> int | None:
    """A label is text, a field of the JSON a number; either can be none."""
    value = str(data.get(name))
    return int(value) if value.isdigit() and int(value) > 0 else None
