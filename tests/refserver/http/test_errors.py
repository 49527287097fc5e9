"""What a client did wrong, and what the engine did."""

from typing import Any

import pytest

from .conftest import Client, prompt


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Either text or input_ids should be provided, and not both."),
        ({"text": "a", "input_ids": [1]}, "Either text or input_ids should be provided, and not both."),
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"input_ids": ["a"]}, "input_ids must be a list of integers."),
        ({"input_ids": [[1], []]}, "input_ids cannot be empty."),
        (
            {"input_ids": [1, 2048]},
            "input_ids contains out-of-vocabulary token id 2048; valid range is [0, 2048).",
        ),
        (
            {"input_ids": [1, -1]},
            "input_ids contains out-of-vocabulary token id -1; valid range is [0, 2048).",
        ),
        (
            {"input_ids": [1] * 8192},
            "The input (8192 tokens) is longer than the model's context length (8192 tokens).",
        ),
        (
            {"input_ids": [1], "sampling_params": {"temperature": -1}},
            "temperature must be a non-negative finite number, got -1.",
        ),
        ({"input_ids": [1], "sampling_params": {"temperature": "hot"}}, "temperature must be a number"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0}}, "top_p must be in (0, 1], got 0."),
        ({"input_ids": [1], "sampling_params": {"top_k": 0}}, "top_k must be -1 (disable) or at least 1"),
        ({"input_ids": [1], "sampling_params": {"min_p": 2}}, "min_p must be in [0, 1], got 2."),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 8192}}, "The request needs 8193 tokens"),
        (
            {"input_ids": [1], "sampling_params": {"n": 2}},
            "n is not supported by the embedded engine, got 2.",
        ),
        ({"input_ids": [1], "sampling_params": {"stop": [""]}}, "stop must be a non-empty string"),
        ({"input_ids": [1], "sampling_params": [{}, {}]}, "sampling_params has 2 entries for 1 prompts."),
        ({"input_ids": [[1], [2]], "extra_key": ["a"]}, "extra_key has 1 entries for 2 prompts."),
        ({"input_ids": [1], "extra_key": 5}, "extra_key and cache_salt must be strings."),
        ({"input_ids": [1], "rid": 5}, "rid must be a string, or a list of one string per prompt."),
        (
            {"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": 3},
            "logprob_start_len 3 is higher than the number of input tokens 2.",
        ),
        (
            {"input_ids": [1], "return_logprob": True, "token_ids_logprob": [9999]},
            "token_ids_logprob contains out-of-vocabulary token id 9999; valid range is [0, 2048).",
        ),
        (
            {"input_ids": [1], "return_logprob": True, "token_ids_logprob": "5"},
            "token_ids_logprob must be a flat list of integers.",
        ),
        ({"input_ids": [1], "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num must be"),
        ([1], "the body must be a JSON object."),
    ],
)
def test_a_wrong_request_is_http_400_with_the_reason(clean: Client, body: Any, message: str) -> None:
    reply = clean.post("/generate", body)
    assert reply.status_code == 400
    assert list(reply.json()) == ["error"]
    assert reply.json()["error"]["message"].startswith(message)


def test_what_is_not_json_is_http_400(clean: Client) -> None:
    assert clean.http.post("/generate", content=b"{").status_code == 400


def test_unknown_keys_are_ignored(clean: Client) -> None:
    params = {"custom_params": {"a": 1}, "frequency_penalty": 0, "logit_bias": None}
    assert clean.generate(prompt(20), params=params, priority=3, lora_path=None)["output_ids"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "temperature": -1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9000}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0, "max_completion_tokens": -1}),
        ("/v1/completions", {"prompt": [1, 5000]}),
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 1}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [5000]}),
    ],
)
def test_openai_errors_have_their_own_shape(clean: Client, path: str, body: Any) -> None:
    reply = clean.post(path, body)
    assert reply.status_code == 400
    assert {**reply.json(), "message": ""} == {
        "object": "error",
        "message": "",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    assert reply.json()["message"]


def test_an_engine_error_is_http_500_and_the_server_goes_on(
    clean: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(clean.service.scheduler._model, "forward", broken)
        native = clean.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}})
        chat = clean.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        health = clean.http.get("/health")
        body = {"input_ids": [1], "stream": True}
        streamed = clean.post("/generate", body).text
    assert (native.status_code, chat.status_code, health.status_code) == (500, 500, 503)
    assert native.json() == {"error": {"message": "RuntimeError: no memory"}}
    assert chat.json()["message"] == "RuntimeError: no memory"
    assert '"error":{"message":"RuntimeError: no memory"' in streamed
    assert clean.generate(prompt(20))["output_ids"]
