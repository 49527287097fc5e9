"""`/generate`: lists, text, stops, streams and sampling."""

import json
import math

import pytest

from .conftest import Client, prompt


def test_lists_come_back_in_order_with_their_own_settings(clean: Client) -> None:
    prompts = [prompt(66), prompt(70)]
    params = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in (1, 3)]
    body = {"input_ids": prompts, "sampling_params": params, "rid": "r", "token_ids_logprob": [[1], [2, 3]]}
    body |= {"return_logprob": [True, True], "top_logprobs_num": [0, 2], "return_prompt_token_ids": True}
    replies = clean.post("/generate", body).json()
    assert [reply["meta_info"]["id"] for reply in replies] == ["r_0", "r_1"]
    assert [len(reply["output_ids"]) for reply in replies] == [1, 3]
    assert [reply["prompt_token_ids"] for reply in replies] == prompts
    assert "output_top_logprobs" not in replies[0]["meta_info"]
    assert len(replies[1]["meta_info"]["output_token_ids_logprobs"][0]) == 2


def test_a_list_of_one_is_a_list(clean: Client) -> None:
    assert isinstance(clean.generate([prompt(20)]), list)


def test_text_and_its_ids_are_the_same_request(clean: Client) -> None:
    text = "What is the capital of France?"
    ids = clean.post("/tokenize", {"prompt": text}).json()["tokens"]
    params = {"temperature": 0, "max_new_tokens": 4}
    by_text = clean.post("/generate", {"text": text, "sampling_params": params}).json()
    assert by_text["output_ids"] == clean.generate(ids, 4)["output_ids"]
    assert by_text["meta_info"]["prompt_tokens"] == len(ids)


def test_a_stop_string_is_cut_off(clean: Client) -> None:
    ids, params = prompt(80), {"ignore_eos": True}
    whole = clean.generate(ids, 8, params=params)
    stop = clean.service.text.decode(whole["output_ids"][3:5])
    assert stop in whole["text"]
    cut = clean.generate(ids, 8, params={**params, "stop": stop})
    assert cut["text"] == whole["text"][: whole["text"].find(stop)]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    kept = clean.generate(ids, 8, params={"stop_token_ids": whole["output_ids"][2:3]})
    assert kept["output_ids"] == whole["output_ids"][:3]
    assert kept["text"] == clean.service.text.decode(whole["output_ids"][:2])


def test_a_stream_is_cumulative_and_ends_with_what_one_reply_says(clean: Client) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 2, "stream": True}
    params = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
    body = {"input_ids": prompt(70), "sampling_params": params, **fields}
    with clean.http.stream("POST", "/generate", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    whole = clean.post("/generate", body | {"stream": False}).json()
    assert [event["output_ids"] for event in events] == [whole["output_ids"][:n] for n in range(1, 6)]
    reasons = [event["meta_info"]["finish_reason"] for event in events]
    assert reasons == [None] * 4 + [{"type": "length", "length": 5}]
    assert events[-1]["text"] == whole["text"]
    assert [len(event["meta_info"]["output_top_logprobs"]) for event in events] == [1, 2, 3, 4, 5]
    assert "e2e_latency" in events[-1]["meta_info"]
    assert "e2e_latency" not in events[0]["meta_info"]


def test_a_streamed_list_says_which_prompt_an_event_is_of(clean: Client) -> None:
    params = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}
    body = {"input_ids": [prompt(20), prompt(21)], "sampling_params": params, "stream": True}
    lines = [line[6:] for line in clean.post("/generate", body).text.splitlines() if line]
    assert sorted(json.loads(line)["index"] for line in lines[:-1]) == [0, 0, 1, 1]


def test_seeds_decide_what_is_sampled(clean: Client) -> None:
    def sample(seed: int) -> list[int]:
        params = {"temperature": 1.5, "sampling_seed": seed, "ignore_eos": True}
        output: list[int] = clean.generate(prompt(30), 12, params=params)["output_ids"]
        return output

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_sampled_logprobs_are_at_the_temperature(clean: Client) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 2048}
    cold = clean.generate(prompt(30), **fields)["meta_info"]["output_top_logprobs"][0]
    warm = clean.generate(prompt(30), params={"temperature": 2.0}, **fields)
    halved = {token: logprob / 2 for logprob, token, _ in cold}
    total = math.log(sum(math.exp(value) for value in halved.values()))
    for logprob, token, _ in warm["meta_info"]["output_top_logprobs"][0][:5]:
        assert logprob == pytest.approx(halved[token] - total, abs=1e-3)
