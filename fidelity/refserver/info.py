"""What the server says about itself: health, configuration, model, metrics; and the flush."""

import asyncio
import time
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from fidelity import __version__

from .errors import EngineError
from .moe import TILE
from .progress import answers
from .replies import json_reply
from .requests import Request, new_rid
from .sampling import Sampling
from .service import Service
from .settings import TRACK_INTERVAL, Settings
from .tool_calls import PARSER
from .weights import Config

ENGINE = "fidelity-embedded"
HEALTH_TIMEOUT = 20.0  # seconds for the health check's one token


async def ready(_: HttpRequest) -> Response:
    """HTTP 200 as soon as requests are taken."""
    return Response(status_code=200)


async def health(http: HttpRequest) -> Response:
    """HTTP 200 if one token can be generated, which joins whatever the engine is doing; 503 if not."""
    service: Service = http.app.state.service
    request = Request(
        np.zeros(1, np.int64), Sampling(max_new_tokens=1, temperature=0.0), rid=f"health_{new_rid()}"
    )
    try:
        await asyncio.wait_for(answers(None, service.scheduler, (request,)), HEALTH_TIMEOUT)
    except (EngineError, TimeoutError):
        return Response(status_code=503)
    return Response(status_code=200)


async def server_info(http: HttpRequest) -> Response:
    """The settings as they were resolved, under the names sglang gives them, and this engine's own."""
    service: Service = http.app.state.service
    settings, weights = service.settings, service.weights
    info: dict[str, Any] = {
        "version": f"{ENGINE}/{__version__}",
        "engine": ENGINE,
        "simulated": True,
        "status": "ready",
        "device": "cpu",
        "profile": settings.profile,
        "profile_sha256": weights.sha256,
        "fault": settings.fault,
        "guard": list(settings.guard),
        "cu": settings.cu,
        "moe_shape": _moe_shape(weights.config),
        "noise": settings.noise,
        "seed": settings.seed,
        "random_seed": settings.seed,
        "nan_json": settings.nan_json,
        "vocab_size": weights.config.vocab_size,
        "model_path": settings.profile,
        "served_model_name": settings.profile,
        "tokenizer_path": settings.profile,
        "mamba_radix_cache_strategy": settings.strategy,
        "uses_mamba_radix_cache": True,
        "mamba_track_interval": TRACK_INTERVAL,
        "mamba_cache_chunk_size": settings.grid,
        "max_mamba_cache_size": settings.max_states,
        "page_size": settings.page_size,
        "disable_radix_cache": False,
        "enable_cache_report": settings.enable_cache_report,
        "attention_backend": "numpy",
        "linear_attn_backend": "numpy",
        "moe_runner_backend": "numpy",
        "sampling_backend": "numpy",
        "chunked_prefill_size": settings.chunked_prefill_size or settings.context_length,
        "max_total_num_tokens": settings.max_cache_tokens,
        "max_running_requests": settings.max_running_requests,
        "context_length": settings.context_length,
        "tp_size": 1,
        "dp_size": 1,
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "quantization": None,
        **_speculative(settings),
        "enable_deterministic_inference": settings.deterministic,
        "skip_tokenizer_init": False,
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
        "internal_states": [_internal_state(service)],
    }
    return json_reply(info, "null", native=True)


def _moe_shape(config: Config) -> dict[str, int]:
    """What decides which batch sizes are split along K, and how far."""
    return {
        "hidden": config.hidden_size,
        "intermediate": config.moe_intermediate_size,
        "topk": config.num_experts_per_tok,
        "experts": config.num_experts,
        "tile": TILE,
    }


async def model_info(http: HttpRequest) -> Response:
    """The model and its tokenizer."""
    service: Service = http.app.state.service
    profile = service.settings.profile
    info = {
        "model_path": profile,
        "served_model_name": profile,
        "tokenizer_path": profile,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": PARSER,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
    }
    return json_reply(info, "null", native=True)


async def models(http: HttpRequest) -> Response:
    """The one model, as the OpenAI API lists it."""
    service: Service = http.app.state.service
    profile = service.settings.profile
    model = {
        "id": profile,
        "object": "model",
        "created": int(service.started),
        "owned_by": ENGINE,
        "root": profile,
        "parent": None,
        "max_model_len": service.settings.context_length,
    }
    return json_reply({"object": "list", "data": [model]}, "null", native=True)


async def flush_cache(http: HttpRequest) -> Response:
    """Empty the prefix cache and the allocator: HTTP 400 unless idle within `timeout` seconds (0)."""
    service: Service = http.app.state.service
    try:
        timeout = float(http.query_params.get("timeout", "0"))
    except ValueError:
        timeout = -1.0
    if not 0.0 <= timeout < float("inf"):
        return PlainTextResponse("timeout must be a number of seconds, 0 or more.\n", 422)
    if await asyncio.wrap_future(service.scheduler.flush(timeout)):
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Flush cache failed: requests are running or waiting.\n", 400)


async def loads(http: HttpRequest) -> Response:
    """Requests running and waiting, and the prompt tokens computed so far, in sglang's shape."""
    service: Service = http.app.state.service
    scheduler, settings = service.scheduler, service.settings
    totals = scheduler.totals
    load = {
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": scheduler.queued,
        "num_used_tokens": scheduler.cache.tokens,
        "max_total_num_tokens": settings.max_cache_tokens,
        "total_prefill_uncached_tokens": totals.prompt_tokens - totals.cached_tokens,
    }
    info = {"timestamp": time.time(), "version": f"{ENGINE}/{__version__}", "loads": [load]}
    return json_reply(info, "null", native=True)


async def metrics(http: HttpRequest) -> Response:
    """Counters and gauges in Prometheus' text format, under sglang's names."""
    service: Service = http.app.state.service
    scheduler, settings = service.scheduler, service.settings
    totals, cache = scheduler.totals, scheduler.cache
    hit_rate = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
    rows = [
        ("gauge", "num_running_reqs", len(scheduler.running)),
        ("gauge", "num_queue_reqs", scheduler.queued),
        ("gauge", "token_usage", cache.tokens / settings.max_cache_tokens),
        ("gauge", "mamba_usage", cache.states / settings.max_states),
        ("gauge", "cache_hit_rate", hit_rate),
        ("gauge", "gen_throughput", totals.last_throughput),
        ("counter", "num_requests_total", totals.requests),
        ("counter", "prompt_tokens_total", totals.prompt_tokens),
        ("counter", "generation_tokens_total", totals.generation_tokens),
        ("counter", "cached_tokens_total", totals.cached_tokens),
        ("counter", "evicted_tokens_total", cache.evicted_tokens),
    ]
    label = f'{{model_name="{settings.profile}"}}'
    lines = [
        line
        for kind, name, value in rows
        for line in (f"# TYPE sglang:{name} {kind}", f"sglang:{name}{label} {value}")
    ]
    return PlainTextResponse("\n".join(lines) + "\n")


def _speculative(settings: Settings) -> dict[str, Any]:
    """sglang's fields: one token a step, so that a verification holds the last token and a draft a step."""
    on, steps = settings.speculative is not None, settings.speculative_num_steps
    return {
        "speculative_algorithm": settings.speculative,
        "speculative_num_steps": steps if on else None,
        "speculative_eagle_topk": 1 if on else None,
        "speculative_num_draft_tokens": steps + 1 if on else None,
    }


def _internal_state(service: Service) -> dict[str, Any]:
    scheduler, settings = service.scheduler, service.settings
    totals = scheduler.totals
    accepted = {}
    if totals.verifications:
        accepted["avg_spec_accept_length"] = totals.verified_tokens / totals.verifications
    return {
        **accepted,
        "world_size": 1,
        "last_gen_throughput": totals.last_throughput,
        "effective_max_running_requests_per_dp": settings.max_running_requests,
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": scheduler.queued,
        "cache_tokens": scheduler.cache.tokens,
        "cache_states": scheduler.cache.states,
        "memory_usage": {"token_capacity": settings.max_cache_tokens},
        "uptime": time.time() - service.started,
    }
