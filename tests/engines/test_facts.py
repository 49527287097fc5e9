from typing import Any

import pytest

from fidelity.engines.facts import read_facts

HYBRID = {"model_type": "qwen3_next", "model_path": "/m"}


@pytest.mark.parametrize("version", ["0.5.21", "0.5.17"])
def test_recorded_servers(version: str, info: dict[str, Any]) -> None:
    facts = read_facts(info[version]["server_info"], info[version]["model_info"])
    assert facts.engine == "sglang"
    assert facts.version == version
    assert (facts.grid, facts.page_size, facts.strategy) == (64, 1, "extra_buffer")
    assert facts.prefix_cache
    assert (facts.tp, facts.dp) == (1, 1)
    assert facts.guards is None  # it cannot say
    assert facts.fault_region is None  # its shapes are not known
    assert not facts.simulated
    assert facts.notes == ()
    assert facts.raw["version"] == version


@pytest.mark.parametrize(
    ("chunk", "page", "grid"), [(None, 1, 64), (None, 64, 64), (64, 128, 128), (None, 32, 64), (128, 64, 128)]
)
def test_the_grid_is_the_common_multiple_of_chunk_and_page(chunk: int | None, page: int, grid: int) -> None:
    assert read_facts({"page_size": page, "mamba_cache_chunk_size": chunk}, HYBRID).grid == grid


def test_the_old_name_of_the_strategy() -> None:
    assert read_facts({"mamba_scheduler_strategy": "no_buffer"}, HYBRID).strategy == "no_buffer"
    both = {"mamba_scheduler_strategy": "no_buffer", "mamba_radix_cache_strategy": "extra_buffer"}
    assert read_facts(both, HYBRID).strategy == "extra_buffer"


@pytest.mark.parametrize("strategy", ["auto", None])
def test_an_unresolved_strategy_is_an_assumption_that_is_said(strategy: str | None) -> None:
    facts = read_facts({"mamba_radix_cache_strategy": strategy}, HYBRID)
    assert facts.strategy == "extra_buffer"
    assert len(facts.notes) == 1
    assert "assumed" in facts.notes[0]


@pytest.mark.parametrize(
    ("model", "says", "hybrid"),
    [
        ("qwen3_next", None, True),
        ("qwen3_5_moe", None, True),
        ("llama", None, False),
        ("llama", True, True),
        ("qwen3_next", False, False),
        (None, None, True),
    ],
)
def test_hybrid_by_the_servers_word_else_by_the_model_type(
    model: str | None, says: bool | None, hybrid: bool
) -> None:
    facts = read_facts(
        {"page_size": 16, "uses_mamba_radix_cache": says, "mamba_radix_cache_strategy": "extra_buffer"},
        {"model_type": model or ""},
    )
    assert (facts.grid, facts.strategy) == ((64, "extra_buffer") if hybrid else (16, "attention only"))


def test_a_disabled_cache_is_known() -> None:
    assert not read_facts({"disable_radix_cache": True}, HYBRID).prefix_cache


@pytest.mark.parametrize(("cu", "region"), [(16, 1), (32, 2), (64, 4)])
def test_the_embedded_engine_says_what_it_is(cu: int, region: int) -> None:
    shape = {"hidden": 128, "intermediate": 64, "topk": 2, "experts": 8, "tile": 16}
    says = {"engine": "fidelity-embedded", "version": "fidelity-embedded/0.1.0", "fault": "split-k"}
    facts = read_facts(
        {**says, "guard": ["splitk"], "cu": cu, "moe_shape": shape, "vocab_size": 2048}, HYBRID
    )
    assert facts.simulated
    assert facts.engine == "fidelity-embedded"
    assert facts.guards == ("splitk",)
    assert facts.fault == "split-k"
    assert facts.fault_region == region
    assert facts.vocab_size == 2048


@pytest.mark.parametrize("guard", [None, [], "none", ["none"]])
def test_no_guard_is_an_empty_list_and_not_unknown(guard: Any) -> None:
    assert read_facts({"engine": "fidelity-embedded", "guard": guard}, HYBRID).guards == ()


def test_a_real_server_that_claims_a_guard_is_not_believed() -> None:
    assert read_facts({"guard": ["splitk"]}, HYBRID).guards is None


def test_secrets_are_hidden_wherever_a_server_tells_them() -> None:
    told = {
        "api_key": "s3cret",
        "admin_api_key": None,
        "launch_command": "sglang serve --api-key s3cret --tokenizer-path q --ssl-password=s3cret",
        "internal_states": [{"env_vars": {"HF_TOKEN": "s3cret", "TOKENIZERS_PARALLELISM": "false"}}],
        "max_total_num_tokens": 3,
    }
    raw = read_facts(told, HYBRID).raw
    assert "s3cret" not in str(raw)
    assert raw["max_total_num_tokens"] == 3
    assert raw["admin_api_key"] is None
    assert "--tokenizer-path q" in raw["launch_command"]
    assert raw["internal_states"][0]["env_vars"]["TOKENIZERS_PARALLELISM"] == "false"
