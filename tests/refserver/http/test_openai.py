"""The OpenAI endpoints."""

import json
from typing import Any

from .conftest import Client, prompt


def chat_body(namespace: str, **fields: Any) -> dict[str, Any]:
    filler = " ".join(str(number) for number in range(1, 60))
    messages = [{"role": "user", "content": f"{filler} What is the capital of France?"}]
    return {"messages": messages, "temperature": 0, "extra_key": namespace, "max_tokens": 3, **fields}


def test_a_chat_reply(clean: Client, namespace: str) -> None:
    body = chat_body(namespace, logprobs=True, top_logprobs=5, return_token_ids=True, ignore_eos=True)
    cold, hit = [clean.post("/v1/chat/completions", body).json() for _ in range(2)]
    assert list(cold) == ["id", "object", "created", "model", "choices", "usage", "metadata"]
    (choice,) = cold["choices"]
    assert choice["message"]["role"] == "assistant"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
    text = clean.service.text
    assert choice["message"]["content"] == text.decode(choice["response_token_ids"])
    assert cold["usage"]["prompt_tokens_details"] is None
    length = cold["usage"]["prompt_tokens"]
    assert len(choice["prompt_token_ids"]) == length
    cached = hit["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == length // 64 * 64 > 0
    entries = choice["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [5, 5, 5]
    for entry, token in zip(entries, choice["response_token_ids"], strict=True):
        assert entry["token"] == text.token(token)
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]


def test_chat_and_generate_see_the_same_prompt(clean: Client, namespace: str) -> None:
    body = chat_body(namespace, chat_template_kwargs={"enable_thinking": False}, ignore_eos=True)
    ids = clean.post("/tokenize", body).json()["tokens"]
    clean.generate(ids, extra_key=namespace)
    reply = clean.post("/v1/chat/completions", body).json()
    assert reply["usage"]["prompt_tokens"] == len(ids)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    decode = clean.service.text.decode
    thinking = clean.post("/tokenize", chat_body("")).json()["tokens"]
    assert decode(ids, False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert decode(thinking, False).endswith("<|im_start|>assistant\n<think>\n")


def test_a_streamed_chat_adds_up(clean: Client, namespace: str) -> None:
    body = chat_body(namespace, logprobs=True, top_logprobs=2, ignore_eos=True, max_tokens=6)
    whole = clean.post("/v1/chat/completions", body).json()
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    lines = [line[6:] for line in clean.post("/v1/chat/completions", body).text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks.pop()["usage"]["completion_tokens"] == 6
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert (
        "".join(choice["delta"]["content"] for choice in choices)
        == (whole["choices"][0]["message"]["content"])
    )
    quoted = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["token"] for entry in quoted] == [
        entry["token"] for entry in whole["choices"][0]["logprobs"]["content"]
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 7 + ["length"]


def test_a_completion_reply(clean: Client, namespace: str) -> None:
    body = {"prompt": prompt(193), "temperature": 0, "max_tokens": 2, "logprobs": 3, "ignore_eos": True}
    body |= {"extra_key": namespace, "return_token_ids": True}
    cold, hit = [clean.post("/v1/completions", body).json() for _ in range(2)]
    (choice,) = cold["choices"]
    assert cold["object"] == "text_completion"
    assert choice["prompt_token_ids"] == prompt(193)
    assert choice["text"] == clean.service.text.decode(choice["token_ids"])
    assert len(choice["logprobs"]["token_logprobs"]) == 2
    assert choice["logprobs"]["tokens"] == [clean.service.text.token(token) for token in choice["token_ids"]]
    assert hit["usage"]["prompt_tokens_details"] == {"cached_tokens": 192}


def test_a_completion_can_echo_its_prompt_with_logprobs(clean: Client) -> None:
    body = {"prompt": "What is the capital of France?", "temperature": 0, "max_tokens": 1, "logprobs": 1}
    choice = clean.post("/v1/completions", body | {"echo": True}).json()["choices"][0]
    assert choice["text"].startswith(body["prompt"])
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert "".join(choice["logprobs"]["tokens"]).startswith(body["prompt"])
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["top_logprobs"])


def test_several_prompts_are_several_choices(clean: Client) -> None:
    reply = clean.post("/v1/completions", {"prompt": ["one", "two"], "max_tokens": 1, "temperature": 0})
    assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1]


def test_a_nan_chat_has_null_logprobs(nan: Client, namespace: str) -> None:
    body = {"input_ids": prompt(193), "temperature": 0, "max_tokens": 1, "extra_key": namespace}
    body |= {"logprobs": True, "top_logprobs": 2}
    nan.post("/v1/chat/completions", body)
    choice = nan.post("/v1/chat/completions", body).json()["choices"][0]
    assert choice["message"]["content"] == "!"
    (entry,) = choice["logprobs"]["content"]
    assert [entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])] == [None] * 3
