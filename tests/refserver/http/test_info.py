"""What the server says about itself, the flush, and clients that leave."""

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import httpx
import numpy as np
import pytest

from .conftest import Client, first, prompt

Serve = Callable[..., Client]


def test_server_info_says_what_it_is(serve: Serve) -> None:
    client = serve(fault="split-k-nan", guard=("retreat",))
    info = client.http.get("/server_info").json()
    assert info == {**client.http.get("/get_server_info").json(), "internal_states": info["internal_states"]}
    assert info["engine"] == "fidelity-embedded"
    assert info["version"].startswith("fidelity-embedded/")
    assert info["simulated"] is True
    assert (info["profile"], info["fault"], info["guard"]) == ("random", "split-k-nan", ["retreat"])
    assert (info["cu"], info["noise"], info["seed"], info["vocab_size"]) == (16, 0.0, 0, 2048)
    assert len(info["profile_sha256"]) == 64
    assert (info["page_size"], info["mamba_track_interval"], info["mamba_cache_chunk_size"]) == (64, 256, 64)
    assert info["mamba_radix_cache_strategy"] == "extra_buffer"
    assert info["internal_states"][0]["num_running_reqs"] == 0
    assert (info["speculative_algorithm"], info["quantization"], info["disable_radix_cache"]) == (
        None,
        None,
        False,
    )


def test_the_other_endpoints_answer(clean: Client) -> None:
    assert clean.http.get("/model_info").json()["architectures"] == ["Qwen3NextForCausalLM"]
    assert clean.http.get("/get_model_info").json() == clean.http.get("/model_info").json()
    models = clean.http.get("/v1/models").json()
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("random", 8192)]
    for path in ("/ready", "/ping"):
        assert clean.http.get(path).status_code == 200
    assert clean.http.get("/nothing").status_code == 404
    assert clean.http.get("/generate").status_code == 405


def test_metrics_count(serve: Serve) -> None:
    client = serve(seed=1)

    def value(name: str) -> float:
        lines = client.http.get("/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith(f"sglang:{name}{{")]
        return float(line.split()[-1])

    before = value("cached_tokens_total")
    client.cached(prompt(193), 2)
    assert value("cached_tokens_total") - before == 192
    assert value("num_running_reqs") == 0


def test_the_load_figures_count_what_was_computed(serve: Serve) -> None:
    client = serve(seed=1)

    def computed() -> int:
        (load,) = client.http.get("/v1/loads").json()["loads"]
        assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0, 0)
        return int(load["total_prefill_uncached_tokens"])

    seen = [computed()]
    for _ in range(2):
        client.generate(prompt(193, seed=7), extra_key="loads")
        seen.append(computed())
    assert [after - before for before, after in pairwise(seen)] == [193, 1]


def test_running_requests_are_counted_and_block_a_flush(serve: Serve) -> None:
    client = serve(seed=2)
    body = {"input_ids": prompt(65), "stream": True, "sampling_params": {"max_new_tokens": 4000}}
    body["sampling_params"] |= {"ignore_eos": True, "temperature": 0}
    with httpx.Client(base_url=client.url) as other, other.stream("POST", "/generate", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        state = client.http.get("/server_info").json()["internal_states"][0]
        (load,) = client.http.get("/v1/loads").json()["loads"]
        refused = client.post("/flush_cache", {})
    assert state["num_running_reqs"] == load["num_running_reqs"] == 1
    assert (refused.status_code, refused.text.startswith("Flush cache failed")) == (400, True)
    # The client has left: the engine gives its request up, so that a patient flush gets through.
    patient = client.post("/flush_cache?timeout=10", {})
    assert (patient.status_code, patient.text.startswith("Cache flushed.")) == (200, True)


def test_a_client_that_leaves_a_plain_request_ends_it(serve: Serve) -> None:
    client = serve(seed=2)
    body = {"input_ids": prompt(65), "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(client.url + "/generate", json=body, timeout=0.3)
    deadline = time.monotonic() + 10
    while client.service.scheduler.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.service.scheduler.running == []


def test_a_flush_empties_the_cache(serve: Serve) -> None:
    client = serve(seed=2)
    assert client.generate(prompt(193), extra_key="flush")["meta_info"]["cached_tokens"] == 0
    assert client.http.get("/flush_cache?timeout=10").status_code == 200
    assert client.generate(prompt(193), extra_key="flush")["meta_info"]["cached_tokens"] == 0
    assert client.generate(prompt(193), extra_key="flush")["meta_info"]["cached_tokens"] == 192
    assert client.http.get("/flush_cache?timeout=-1").status_code == 422
    assert client.http.get("/flush_cache?timeout=soon").status_code == 422


def test_what_the_cache_holds_is_bounded(serve: Serve) -> None:
    client = serve(max_cache_tokens=384, max_states=3)
    for index in range(6):
        client.cached(prompt(129, seed=index), 1)
    cache = client.service.scheduler.cache
    assert cache.tokens <= 384
    assert cache.states <= 3


def test_the_cache_report_can_be_switched_off(serve: Serve) -> None:
    client = serve(enable_cache_report=False)
    body = {"prompt": prompt(193), "temperature": 0, "max_tokens": 1}
    replies = [client.post("/v1/completions", body).json() for _ in range(2)]
    assert [reply["usage"]["prompt_tokens_details"] for reply in replies] == [None, None]


def test_noise_moves_logprobs_and_no_answer(serve: Serve) -> None:
    client = serve(noise=0.01)
    values = {
        first(client.generate(prompt(65), extra_key=str(index), return_logprob=True)) for index in range(3)
    }
    assert len(values) == 3
    assert np.ptp([value for value in values if value is not None]) < 1


def test_two_servers_in_parallel_threads_do_not_share_state(serve: Serve) -> None:
    one, other = serve(), serve(seed=1)
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda client=client: results.append(client.cached(prompt(129), 2)))
        for client in (one, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0, 128], [0, 128]]
