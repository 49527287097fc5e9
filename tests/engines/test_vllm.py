"""vLLM's answers as they were recorded, what is sent for them, and what the server tells of itself."""

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.compare import broken_rules
from fidelity.engines import prometheus, vllm
from fidelity.engines.registry import meet
from fidelity.engines.request import Request
from fidelity.engines.vllm_facts import read_facts
from fidelity.errors import NotWhatWasAskedError
from fidelity.observations import Answer

from ..fake_sglang import FakeSglang
from ..fake_vllm import FakeVLLM

SAMPLES = Path(__file__).parent / "samples"
PROMPT = [504, 3575, 282, 4649, 314]
CARD = {"id": "tiny", "owned_by": "vllm", "root": "/models/tiny", "max_model_len": 4096}


def read(sample: str, status: int = 200, **request: Any) -> Answer:
    text = (SAMPLES / f"{sample}.json").read_text(encoding="utf-8")
    return vllm.read_response(status, text, 0.1, Request(PROMPT, "n", **request))


def keyed() -> dict[str, Any]:
    """The recorded answer with its keys as `return_tokens_as_token_ids` writes them."""
    data = json.loads((SAMPLES / "vllm_completions_token_ids.json").read_text(encoding="utf-8"))
    told = data["choices"][0]["logprobs"]
    told["tokens"] = ["token_id:7042"]
    told["top_logprobs"] = [
        {f"token_id:{7042 + n}": lp for n, lp in enumerate(told["top_logprobs"][0].values())}
    ]
    found: dict[str, Any] = data
    return found


def parsed(data: dict[str, Any], **request: Any) -> Answer:
    return vllm.read_response(200, json.dumps(data), 0.1, Request(PROMPT, "n", **request))


def test_a_completion_is_read_by_token_ids() -> None:
    answer = parsed(keyed())
    assert (answer.output_ids, answer.text) == ([7042], " Paris")
    assert answer.logprobs == [pytest.approx(-0.258, abs=1e-3)]
    assert [token for token, _ in answer.top[0]] == [7042, 7043, 7044]
    assert (answer.prompt_tokens, answer.cached_tokens, answer.values) == (5, 0, 4)
    assert (answer.faces, answer.mismatched, answer.raw) == ({}, False, None)


def test_logprobs_keyed_by_text_are_an_unknown_shape() -> None:
    answer = read("vllm_completions_token_ids")
    assert answer.failed
    assert "is no token id" in (answer.error or "")


def test_logprobs_of_another_token_than_the_answers_are_mismatched() -> None:
    data = keyed()
    data["choices"][0]["token_ids"] = [9]
    assert parsed(data).mismatched


def test_prompt_logprobs_are_scores_without_the_token_that_came_with_them() -> None:
    answer = read("vllm_completions_prompt_logprobs", max_new_tokens=0, score_from=1, top_k=2)
    assert answer.scored == [pytest.approx(value, abs=1e-3) for value in (-11.539, -0.338, -2.439, -0.451)]
    assert [[token for token, _ in row] for row in answer.scored_top] == [
        [29, 28],
        [282, 2240],
        [4649, 260],
        [314, 28],
    ]
    assert (answer.output_ids, answer.logprobs, answer.text) == ([], [], None)
    last = read("vllm_completions_prompt_logprobs", max_new_tokens=0, score_from=3, top_k=1)
    assert ([len(row) for row in last.scored_top], len(last.scored)) == ([1, 1], 2)


def test_scores_of_other_tokens_than_were_sent_are_mismatched() -> None:
    text = (SAMPLES / "vllm_completions_prompt_logprobs.json").read_text(encoding="utf-8")
    other = Request([504, 3575, 282, 1, 314], "n", 0, score_from=1)
    assert vllm.read_response(200, text, 0.1, other).mismatched
    longer = Request([*PROMPT, 7], "n", 0, score_from=1)
    assert vllm.read_response(200, text, 0.1, longer).mismatched


def test_a_nan_that_came_as_the_clients_error_counts_as_nan() -> None:
    answer = read("vllm_nan_logits_http400", status=400)
    assert (answer.faces, answer.values, answer.failed) == ({"http nan": 1}, 1, False)
    other = vllm.read_response(400, '{"error": {"message": "too long", "code": 400}}', 0.1, Request([1], "n"))
    assert other.failed
    assert not other.faces


def test_equal_logprobs_everywhere_break_the_flat_row() -> None:
    text = (SAMPLES / "vllm_all_equal.json").read_text(encoding="utf-8")
    answer = vllm.read_response(200, text, 0.1, Request([1] * 193, "n"))
    assert {round(value, 4) for _, value in answer.top[0]} == {-12.4225}
    assert (answer.cached_tokens, answer.faces, broken_rules(answer)) == (192, {}, ("flat row",))
    assert not broken_rules(parsed(keyed()))


def test_without_the_flag_no_cached_tokens_are_made_up() -> None:
    data = keyed()
    data["usage"]["prompt_tokens_details"] = None
    assert parsed(data).cached_tokens is None


def test_what_is_sent_isolates_by_salt_and_names_tokens_by_id() -> None:
    path, body = vllm.call([Request(PROMPT, "run/none/choice/a@193/0/a", 1, top_k=7)], single=True)
    assert path == "/v1/completions"
    assert body["return_tokens_as_token_ids"] is body["return_token_ids"] is True
    assert (body["prompt"], body["logprobs"], body["max_tokens"]) == (PROMPT, 7, 1)
    assert body["cache_salt"] == "run|none|choice|a~193|0|a"
    assert "prompt_logprobs" not in body
    _, scored = vllm.call([Request(PROMPT, "n", 0, score_from=2)], single=True)
    assert (scored["max_tokens"], scored["prompt_logprobs"], "logprobs" in scored) == (1, 20, False)
    long = [vllm.call([Request(PROMPT, "x" * 200 + end)], single=True)[1]["cache_salt"] for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 128


def test_a_server_is_recognised_by_its_own_endpoints_and_no_other_is() -> None:
    with FakeVLLM().client() as client:
        facts = meet(client)
    assert (facts.engine, facts.version, facts.model) == ("vllm", "0.32.0", "tiny")
    assert "owned by vllm" in facts.notes[0]
    with FakeSglang().client() as client:
        assert vllm.recognise(client) is None
    with FakeVLLM(owner="me").client() as client:
        assert vllm.recognise(client) is None
        with pytest.raises(NotWhatWasAskedError, match="not as a vLLM server"):
            vllm.facts(client)


def info(**labels: str) -> list[prometheus.Sample]:
    return [prometheus.Sample("vllm:cache_config_info", labels, 1.0)]


def test_the_grid_is_the_block_at_which_hits_land() -> None:
    dense = read_facts("0.32.0", CARD, info(block_size="16", mamba_cache_mode="none"), {})
    assert (dense.grid, dense.strategy, dense.cold_shares_step) == (16, "attention only", None)
    assert (dense.max_top_k, dense.refuses_unknown_ids) == (20, True)
    assert [note for note in dense.notes if "--max-logprobs 200" in note] == list(dense.notes)
    assert "apart" not in dense.lacks
    finer = info(block_size="528", mamba_cache_mode="align", cache_hit_alignment_tokens="64")
    hybrid = read_facts("0.32.0", CARD, finer, {})
    assert (hybrid.grid, hybrid.strategy) == (64, "align")
    assert "same last step" in (hybrid.cold_shares_step or "")
    assert hybrid.lacks["apart"] == hybrid.cold_shares_step
    assert hybrid.cold_shares_step in hybrid.notes


def test_without_a_cache_a_hybrids_cold_send_is_computed_at_once() -> None:
    labels = {"block_size": "64", "mamba_cache_mode": "none", "enable_prefix_caching": "False"}
    off = read_facts("0.32.0", CARD, info(**labels), {})
    assert (off.prefix_cache, off.cold_shares_step) == (False, None)


def test_a_development_server_tells_its_limits() -> None:
    config = {
        "model_config": {"max_logprobs": 5, "quantization": "fp8"},
        "parallel_config": {"tensor_parallel_size": 4, "data_parallel_size": 2},
        "cache_config": {"block_size": 32, "mamba_cache_mode": "none", "enable_prefix_caching": True},
    }
    facts = read_facts("0.32.0", CARD, [], {"vllm_config": config})
    assert (facts.grid, facts.max_top_k, facts.tp, facts.dp) == (32, 5, 4, 2)
    config["model_config"]["max_logprobs"] = -1
    free = read_facts("0.32.0", CARD, [], {"vllm_config": config})
    assert (free.max_top_k, free.notes) == (None, ())


def test_an_unknown_block_is_assumed_and_said() -> None:
    facts = read_facts("0.32.0", CARD, [], {})
    assert facts.grid == 16
    assert "16 tokens are assumed" in facts.notes[0]


def test_the_load_is_read_off_the_metrics() -> None:
    fake = FakeVLLM(company=lambda look: 2)
    fake.computed = 193
    with fake.client() as client:
        load = vllm.look(client)
    assert load is not None
    assert (load.busy, load.computed) == (2, 193)
    silent = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(404)), base_url="http://x")
    assert vllm.look(silent) is None


def test_a_rank_is_pinned_by_its_header() -> None:
    ranks: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        ranks.append(request.headers.get("x-data-parallel-rank"))
        return httpx.Response(500)

    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://x") as client:
        vllm.generate(client, Request([1, 2, 3], "n", dp_rank=0))
        vllm.generate(client, Request([1, 2, 3], "n"))
    assert ranks == ["0", None]


def test_metrics_lines_of_another_format_are_passed_over() -> None:
    text = '# HELP x y\nx{a="b\\"c",d="1"} 2.5\nbroken{ 3\nx 1\ny{} nan\nz word\n'
    samples = list(prometheus.parse(text))
    assert [(one.name, dict(one.labels)) for one in samples] == [
        ("x", {"a": 'b"c', "d": "1"}),
        ("x", {}),
        ("y", {}),
    ]
    assert prometheus.total(samples, "x") == 3.5
    assert prometheus.total(samples, "x", a='b"c') == 2.5
    assert prometheus.total(samples, "none") is None
    assert math.isnan(prometheus.total(samples, "y") or 0.0)
