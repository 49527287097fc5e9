"""`/generate`: one reply's keys, logprobs and limits, as a real sglang gives them."""

import math

import pytest

from .conftest import Client, prompt


def test_a_reply_has_the_keys_of_a_real_one_in_their_order(clean: Client, namespace: str) -> None:
    reply = clean.generate(prompt(193), return_logprob=True, top_logprobs_num=20, extra_key=namespace)
    assert list(reply) == ["text", "output_ids", "meta_info"]
    assert list(reply["meta_info"]) == [
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "num_retractions",
        "input_token_logprobs",
        "output_token_logprobs",
        "output_token_logprobs_length",
        "input_top_logprobs",
        "output_top_logprobs",
        "reasoning_tokens",
        "completion_tokens",
        "cached_tokens",
        "weight_versions",
        "cached_tokens_details",
        "dp_rank",
        "e2e_latency",
        "response_sent_to_client_ts",
    ]
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 1}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (193, 1, 0)
    assert meta["cached_tokens_details"] is None
    assert meta["dp_rank"] is None
    assert meta["input_token_logprobs"] == meta["input_top_logprobs"] == []
    assert len(meta["output_top_logprobs"][0]) == 20
    assert meta["output_top_logprobs"][0][0] == meta["output_token_logprobs"][0]
    assert meta["output_token_logprobs"][0][1:] == [reply["output_ids"][0], None]
    assert 0 < meta["e2e_latency"] < 30


def test_without_logprobs_their_keys_are_absent(clean: Client) -> None:
    meta = clean.generate(prompt(20), rid="mine")["meta_info"]
    assert not [key for key in meta if "logprobs" in key]
    assert meta["id"] == "mine"


def test_a_hit_reports_where_its_tokens_came_from(clean: Client, namespace: str) -> None:
    clean.generate(prompt(193), extra_key=namespace)
    meta = clean.generate(prompt(193), extra_key=namespace)["meta_info"]
    assert meta["cached_tokens_details"] == {"device": 192, "host": 0}


def test_logprobs_are_a_distribution_over_the_vocabulary(clean: Client) -> None:
    meta = clean.generate(prompt(70), return_logprob=True, top_logprobs_num=2048)["meta_info"]
    (top,) = meta["output_top_logprobs"]
    assert sorted(token for _, token, _ in top) == list(range(2048))
    assert sum(math.exp(logprob) for logprob, _, _ in top) == pytest.approx(1, abs=1e-5)
    assert [entry[0] for entry in top] == sorted((entry[0] for entry in top), reverse=True)


def test_asked_ids_are_quoted_in_order(clean: Client) -> None:
    fields = {"return_logprob": True, "token_ids_logprob": [7, 3, 7]}
    meta = clean.generate(prompt(70), 2, top_logprobs_num=2048, **fields)["meta_info"]
    for quoted, top in zip(meta["output_token_ids_logprobs"], meta["output_top_logprobs"], strict=True):
        by_id = {token: logprob for logprob, token, _ in top}
        assert quoted == [[by_id[7], 7, None], [by_id[3], 3, None], [by_id[7], 7, None]]
    assert meta["input_token_ids_logprobs"] == []


def test_text_in_logprobs(clean: Client) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    reply = clean.generate(prompt(70), params={"ignore_eos": True}, **fields)
    _, token, shown = reply["meta_info"]["output_token_logprobs"][0]
    assert shown == clean.service.text.token(token)


def test_prompt_logprobs_are_those_of_each_prefix(clean: Client) -> None:
    ids = prompt(70)
    fields = {"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5]}
    meta = clean.generate(ids, logprob_start_len=0, **fields)["meta_info"]
    assert meta["cached_tokens"] == 0
    assert [token for _, token, _ in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0] == [None, ids[0], None]
    assert meta["input_top_logprobs"][0] is meta["input_token_ids_logprobs"][0] is None
    assert len(meta["input_top_logprobs"]) == len(meta["input_token_ids_logprobs"]) == 70
    asked = {"return_logprob": True, "token_ids_logprob": [ids[40]]}
    alone = clean.generate(ids[:40], **asked)["meta_info"]["output_token_ids_logprobs"][0][0][0]
    assert meta["input_token_logprobs"][40][0] == pytest.approx(alone, abs=1e-3)


def test_prompt_logprobs_cap_the_hit_at_their_start(clean: Client, namespace: str) -> None:
    ids = prompt(193)
    clean.generate(ids, extra_key=namespace)
    cached = {}
    for start in (-1, 193, 192, 0):
        meta = clean.generate(ids, extra_key=namespace, return_logprob=True, logprob_start_len=start)
        cached[start] = (meta["meta_info"]["cached_tokens"], len(meta["meta_info"]["input_token_logprobs"]))
    assert cached == {-1: (192, 0), 193: (192, 0), 192: (192, 1), 0: (0, 193)}


def test_no_new_tokens_seeds_the_cache_and_quotes_the_next_position(clean: Client, namespace: str) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [4]}
    reply = clean.generate(prompt(193), 0, extra_key=namespace, **fields)
    meta = reply["meta_info"]
    assert (reply["text"], reply["output_ids"], meta["completion_tokens"]) == ("", [], 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert (meta["output_token_logprobs"], meta["output_token_logprobs_length"]) == ([], 0)
    follow = clean.generate(prompt(193), 1, extra_key=namespace, **fields)
    assert follow["meta_info"]["cached_tokens"] == 192
    shown, again = meta["output_top_logprobs"], follow["meta_info"]["output_top_logprobs"]
    assert [token for _, token, _ in shown[0]] == [token for _, token, _ in again[0]]
    assert shown[0][0][0] == pytest.approx(again[0][0][0], abs=1e-3)
    assert len(meta["output_token_ids_logprobs"]) == 1
