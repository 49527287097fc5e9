"""Each way of testing nothing is named from the server's own words, and only then."""

from dataclasses import replace
from typing import Any

import pytest

from fidelity.engines import vacuity
from fidelity.engines.facts import ServerFacts, read_facts

HYBRID = {"model_type": "qwen3_next"}
PLAIN = {"version": "0.5.21", "page_size": 1, "tp_size": 1, "mamba_radix_cache_strategy": "extra_buffer"}


def found(told: dict[str, Any], longest: int = 225, *, owned: bool = True) -> list[str]:
    facts = read_facts({**PLAIN, **told}, HYBRID)
    return [one.id for one in vacuity.find(facts, longest, owned=owned)]


def env(**variables: str) -> dict[str, Any]:
    return {"internal_states": [{"env_vars": variables}]}


@pytest.mark.parametrize(
    ("told", "id"),
    [
        ({"disable_radix_cache": True}, "prefix-cache-off"),
        (env(SGLANG_RADIX_FORCE_MISS="1"), "forced-miss"),
        ({"mamba_radix_cache_strategy": "no_buffer"}, "no-buffer"),
        ({"disaggregation_mode": "decode"}, "disaggregated"),
        ({"dp_size": 4}, "data-parallel"),
        ({"chunked_prefill_size": 128}, "chunked-prefill"),
        ({"context_length": 240}, "context-length"),
        ({"cuda_graph_config": {"prefill": {"backend": "piecewise"}}}, "prefill-graph"),
        ({"internal_states": [{"decode_cuda_graph_bs": [2, 4, 8]}]}, "decode-graph"),
        ({"cuda_graph_bs": [4, 8]}, "decode-graph"),
        ({"moe_runner_backend": "triton"}, "moe-triton"),
        (env(SGLANG_USE_AITER="0"), "aiter-off"),
        (env(AITER_KSPLIT="1"), "ksplit-forced"),
        ({"enable_deterministic_inference": True}, "deterministic"),
        ({"speculative_algorithm": "NEXTN"}, "speculative"),
        ({"ep_size": 8}, "expert-parallel"),
        ({"enable_dp_attention": True}, "dp-attention"),
        (env(SGLANG_SANITIZE_NAN_LOGITS="true"), "nan-sanitized"),
        (env(SGLANG_RUST_SERVER="1"), "rust-front-end"),
        ({"tp_size": 2, **env(ROCM_QUICK_REDUCE_QUANTIZATION="INT8")}, "quick-reduce"),
        ({"engine": "fidelity-embedded", "guard": ["splitk"]}, "guarded"),
    ],
)
def test_each_is_found_alone(told: dict[str, Any], id: str) -> None:
    assert found(told) == [id]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"disable_radix_cache": False, "dp_size": 1, "ep_size": 1, "disaggregation_mode": "null"},
        {"chunked_prefill_size": 225, "context_length": 242},
        {"chunked_prefill_size": -1},
        {"cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}},
        {"cuda_graph_config": {"decode": {"backend": "disabled"}}, "cuda_graph_bs": [4]},
        {"disable_cuda_graph": True, "cuda_graph_bs": [4]},
        {"cuda_graph_bs": [1, 2, 4]},
        {"moe_runner_backend": "auto", "speculative_algorithm": None},
        {"engine": "fidelity-embedded", "guard": ["retreat"]},
        env(SGLANG_RADIX_FORCE_MISS="0", SGLANG_SANITIZE_NAN_LOGITS="false", SGLANG_USE_AITER="1"),
        {"tp_size": 1, **env(ROCM_QUICK_REDUCE_QUANTIZATION="INT8")},
        {"tp_size": 8, **env(ROCM_QUICK_REDUCE_QUANTIZATION="NONE")},
        {"internal_states": ["odd"], "cuda_graph_config": "odd", "chunked_prefill_size": "odd"},
    ],
)
def test_nothing_is_found_on_a_plain_server(told: dict[str, Any]) -> None:
    assert found(told) == []


def test_a_page_that_is_not_a_servers_own_is_a_routers() -> None:
    facts = read_facts({"version": "0.5.21", "mamba_radix_cache_strategy": "extra_buffer"}, HYBRID)
    assert [one.id for one in vacuity.find(facts, 225, owned=True)] == ["router"]
    other = replace(facts, engine="openai")
    assert not vacuity.find(other, 225, owned=True)


def test_health_probes_are_a_matter_of_servers_that_others_watch() -> None:
    silent = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
    assert found({}, owned=True) == []
    assert found({}, owned=False) == ["health-probe"]
    assert found(env(**{silent: "1"}), owned=False) == ["health-probe"]
    assert found(env(**{silent: "0"}), owned=False) == []


def test_the_lengths_of_the_plan_decide() -> None:
    assert found({"chunked_prefill_size": 512}, longest=513) == ["chunked-prefill"]
    assert found({"chunked_prefill_size": 512}, longest=512) == []


def test_deterministic_inference_is_named_as_the_cause_of_a_disabled_cache() -> None:
    told = {**PLAIN, "disable_radix_cache": True, "enable_deterministic_inference": True}
    first, second = vacuity.find(read_facts(told, HYBRID), 225, owned=True)
    assert (first.id, second.id) == ("prefix-cache-off", "deterministic")
    assert "deterministic inference" in first.message


def test_a_line_names_the_remedy() -> None:
    facts = ServerFacts(engine="sglang", version="0.5.21", model="m", prefix_cache=False, raw=PLAIN)
    (one,) = vacuity.find(facts, 225, owned=True)
    assert one.line() == (
        "prefix-cache-off: the prefix cache is disabled (by a flag): no re-send can be a hit "
        "(remedy: start the server without --disable-radix-cache)"
    )
    assert vacuity.find(replace(facts, prefix_cache=True), 225, owned=True) == []


@pytest.mark.parametrize(
    ("aiter", "ids"),
    [
        ("guarded", ["aiter-guarded"]),
        ("not affected", ["aiter-guarded"]),
        ("unguarded", []),
        ("unknown", []),
        (None, []),
    ],
)
def test_an_aiter_with_a_guard_of_its_own(aiter: str | None, ids: list[str]) -> None:
    facts = read_facts(PLAIN, HYBRID)
    assert [one.id for one in vacuity.find(facts, 225, owned=True, aiter=aiter)] == ids
