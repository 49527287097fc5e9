"""Ways in which a test of this server would prove little, from what the server says of itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fidelity.engines.facts import EMBEDDED, ServerFacts

SPARE = 17
"""Tokens that must fit behind the longest prompt: the longest answer shown, and one more."""

_OFF = ("", "0", "false", "no", "off", "none", "disabled")


@dataclass(frozen=True)
class Vacuity:
    """`message` says what the test would miss, `remedy` what to do about it."""

    id: str
    message: str
    remedy: str

    def line(self) -> str:
        return f"{self.id}: {self.message} (remedy: {self.remedy})"


def find(facts: ServerFacts, longest: int, *, owned: bool, aiter: str | None = None) -> list[Vacuity]:
    """Every way that shows in the facts, for prompts of up to `longest` tokens. An environment shows only on
    servers started with SGLANG_EXPOSE_OWN_ENV_VARS=1. `owned`: nobody else sends to this server; `aiter`: how
    its aiter treats a split of one tile (guarded, not affected, ...), where that can be looked up."""
    groups = (_cache(facts), _lengths(facts, longest), _kernels(facts), _guards(facts, aiter))
    all_found = [found for group in (*groups, _hidden(facts, owned)) for found in group]
    return [Vacuity(name, message, _remedy(facts, remedy)) for name, message, remedy in all_found]


Found = Iterator[tuple[str, str, str]]

_IN_VLLM = {
    "without --disable-radix-cache": "with --enable-prefix-caching",
    "--chunked-prefill-size": "--max-num-batched-tokens",
    "--context-length": "--max-model-len",
    "--dp-size": "--data-parallel-size",
}


def _remedy(facts: ServerFacts, remedy: str) -> str:
    """In the words of the server's own flags."""
    for ours, theirs in _IN_VLLM.items() if facts.engine == "vllm" else ():
        remedy = remedy.replace(ours, theirs)
    return remedy


def _cache(facts: ServerFacts) -> Found:
    env = _environment(facts.raw)
    if not facts.prefix_cache:
        why = "deterministic inference" if _on(facts.raw, "enable_deterministic_inference") else "a flag"
        yield (
            "prefix-cache-off",
            f"the prefix cache is disabled (by {why}): no re-send can be a hit",
            "start the server without --disable-radix-cache",
        )
    if _set(env, "SGLANG_RADIX_FORCE_MISS"):
        yield (
            "forced-miss",
            "SGLANG_RADIX_FORCE_MISS makes every send miss the prefix cache",
            "unset SGLANG_RADIX_FORCE_MISS",
        )
    if facts.strategy == "no_buffer":
        yield (
            "no-buffer",
            "the no_buffer strategy keeps no checkpoint that an identical re-send can hit",
            "--mamba-radix-cache-strategy extra_buffer",
        )
    own = facts.engine in ("sglang", EMBEDDED)
    if own and "page_size" not in facts.raw and "tp_size" not in facts.raw:
        yield (
            "router",
            "/server_info is not a server's own: a router may send the two sends to two servers",
            "give the address of one server",
        )
    mode = facts.raw.get("disaggregation_mode")
    if isinstance(mode, str) and mode.lower() not in _OFF and mode != "null":
        yield (
            "disaggregated",
            f"this server does only the {mode} part of a request",
            "give the address of a server that does both",
        )
    if facts.dp > 1:
        yield (
            "data-parallel",
            f"every request is pinned to rank 0 of {facts.dp}: the other ranks are not tested",
            "check a replica of each rank, or start with --dp-size 1",
        )


def _lengths(facts: ServerFacts, longest: int) -> Found:
    chunk = facts.raw.get("chunked_prefill_size")
    if isinstance(chunk, int) and 0 < chunk < longest:
        yield (
            "chunked-prefill",
            f"a cold send of {longest} tokens is split into chunks of {chunk}",
            f"shorter lengths, or --chunked-prefill-size {longest} or more",
        )
    context = facts.raw.get("context_length")
    if isinstance(context, int) and 0 < context < longest + SPARE:
        yield (
            "context-length",
            f"the context of {context} tokens has no room for a prompt of {longest} and an answer",
            "shorter lengths, or a larger --context-length",
        )


def _kernels(facts: ServerFacts) -> Found:
    raw, env = facts.raw, _environment(facts.raw)
    config = raw.get("cuda_graph_config")
    graphs = config if isinstance(config, dict) else {}
    prefill = _backend(graphs, "prefill")
    if prefill is not None and prefill.lower() not in _OFF:
        yield (
            "prefill-graph",
            f"prefill graphs ({prefill}) pad the tokens of a re-send: none is computed alone",
            "--cuda-graph-backend-prefill disabled",
        )
    sizes = _decode_sizes(raw)
    decode = (_backend(graphs, "decode") or "on").lower() not in _OFF and not _on(raw, "disable_cuda_graph")
    if decode and sizes and 1 not in sizes:
        yield (
            "decode-graph",
            f"decode graphs begin at a batch of {min(sizes)}: single-request decode is padded to it",
            "add 1 to --cuda-graph-bs",
        )
    if raw.get("moe_runner_backend") == "triton":
        yield (
            "moe-triton",
            "the experts run in Triton kernels: a fault of aiter's split-K path cannot show",
            "leave --moe-runner-backend out, unless this is meant as a control",
        )
    if "SGLANG_USE_AITER" in env and not _set(env, "SGLANG_USE_AITER"):
        yield (
            "aiter-off",
            "SGLANG_USE_AITER=0: a fault of aiter's kernels cannot show",
            "SGLANG_USE_AITER=1, unless this is meant as a control",
        )
    if _set(env, "AITER_KSPLIT"):
        yield (
            "ksplit-forced",
            f"AITER_KSPLIT={env['AITER_KSPLIT']} overrides how aiter splits: the fault region is another",
            "unset AITER_KSPLIT, unless this is meant as a control",
        )
    if _on(raw, "enable_deterministic_inference"):
        yield (
            "deterministic",
            "deterministic inference runs other kernels than the usual ones",
            "start without --enable-deterministic-inference",
        )
    if raw.get("speculative_algorithm"):
        yield (
            "speculative",
            f"speculative decoding ({raw['speculative_algorithm']}) verifies several tokens at once: "
            "single-token decode is not what runs",
            "judge the first token only, as re-sends do, or start without it",
        )
    ranks = raw.get("ep_size")
    if isinstance(ranks, int) and ranks > 1:
        yield (
            "expert-parallel",
            f"experts are spread over {ranks} ranks: the fault region is that of one rank's share",
            "give the suspect tails with --tail",
        )
    if _on(raw, "enable_dp_attention"):
        yield (
            "dp-attention",
            "tokens of other ranks join each batch: a request is alone only if every rank is idle",
            "start without --enable-dp-attention",
        )


def _guards(facts: ServerFacts, aiter: str | None) -> Found:
    if facts.guards and {"splitk", "unsplit"} & set(facts.guards):
        yield (
            "guarded",
            f"the guard {', '.join(facts.guards)} is applied: the fault it guards against cannot show",
            "nothing, if the guard is what is tested",
        )
    if aiter in ("guarded", "not affected"):
        yield (
            "aiter-guarded",
            f"this aiter is {aiter}: its own split-K fault cannot show",
            "an image whose aiter is unguarded, unless this is meant as a control",
        )


def _hidden(facts: ServerFacts, owned: bool) -> Found:
    env = _environment(facts.raw)
    if _set(env, "SGLANG_SANITIZE_NAN_LOGITS"):
        yield (
            "nan-sanitized",
            "SGLANG_SANITIZE_NAN_LOGITS turns a NaN row into a flat one: no NaN will be counted",
            "unset SGLANG_SANITIZE_NAN_LOGITS",
        )
    if _set(env, "SGLANG_RUST_SERVER"):
        yield (
            "rust-front-end",
            "how the experimental Rust front end writes a NaN is not known",
            "unset SGLANG_RUST_SERVER",
        )
    quick = env.get("ROCM_QUICK_REDUCE_QUANTIZATION", "")
    if facts.tp > 1 and quick.lower() not in _OFF:
        yield (
            "quick-reduce",
            f"large all-reduces are quantised to {quick}: a cold send differs from a re-send by design",
            "ROCM_QUICK_REDUCE_QUANTIZATION=NONE",
        )
    silent = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
    probes = facts.engine in ("sglang", EMBEDDED) and not owned
    if probes and (silent not in env or _set(env, silent)):
        yield (
            "health-probe",
            "a GET of /health runs one token and joins the batch, where a fault at one token does not show",
            f"pause health probes during the check, or start with {silent}=0",
        )


def _environment(raw: Mapping[str, Any]) -> dict[str, str]:
    """The server's variables as far as it shows them; the first rank's win."""
    states = raw.get("internal_states")
    found: dict[str, str] = {}
    for state in states if isinstance(states, list) else []:
        variables = state.get("env_vars") if isinstance(state, dict) else None
        if isinstance(variables, dict):
            found = {**{str(key): str(value) for key, value in variables.items()}, **found}
    return found


def _set(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() not in _OFF


def _on(raw: Mapping[str, Any], name: str) -> bool:
    return raw.get(name) is True


def _backend(graphs: Mapping[str, Any], phase: str) -> str | None:
    settings = graphs.get(phase)
    backend = settings.get("backend") if isinstance(settings, dict) else None
    return backend if isinstance(backend, str) else None


def _decode_sizes(raw: Mapping[str, Any]) -> list[int]:
    """The batch sizes that decode graphs were captured for, as each release names them."""
    states = raw.get("internal_states")
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    for told in (first.get("decode_cuda_graph_bs"), raw.get("cuda_graph_bs")):
        if isinstance(told, list) and told and all(type(size) is int for size in told):
            return told
    return []
