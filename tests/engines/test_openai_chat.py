"""The chat endpoint's answers, read tolerantly; and which servers have nothing to read."""

import json
from typing import Any

import httpx
import pytest

from fidelity.engines import openai_chat
from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import Request


def reply(**message: Any) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 193, "prompt_tokens_details": {"cached_tokens": 192}},
    }


CALL = {"type": "function", "function": {"name": "give_city", "arguments": '{"city": "Paris"}'}}


def test_the_request_and_its_tool_call() -> None:
    seen: list[dict[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append({"path": request.url.path, **json.loads(request.content)})
        return httpx.Response(200, json=reply(content=None, tool_calls=[CALL]))

    chat = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}
    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://x") as client:
        answer = openai_chat.complete(client, Request([1, 2], "n", 8, dp_rank=0, chat=chat))
    assert seen == [
        {
            "path": "/v1/chat/completions",
            **chat,
            "temperature": 0.0,
            "max_tokens": 8,
            "logprobs": True,
            "extra_key": "n",
            "routed_dp_rank": 0,
        }
    ]
    assert answer.tool_calls == [{"name": "give_city", "arguments": '{"city": "Paris"}'}]
    assert (answer.text, answer.prompt_tokens, answer.cached_tokens, answer.failed) == ("", 193, 192, False)


def test_a_miss_without_details_is_a_miss() -> None:
    data = reply(content="Paris")
    data["usage"]["prompt_tokens_details"] = None
    assert openai_chat.read_response(200, json.dumps(data), 0.1).cached_tokens == 0


@pytest.mark.parametrize("logprob", ["NaN", "null"])
def test_a_logprob_that_is_none_is_counted(logprob: str) -> None:
    data = reply(content="!")
    data["choices"][0]["logprobs"] = {"content": [{"token": "!", "logprob": -7}]}
    answer = openai_chat.read_response(200, json.dumps(data).replace("-7", logprob), 0.1)
    assert answer.faces == {logprob.lower(): 1}
    assert answer.raw is not None


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (404, '{"detail": "Not Found"}', "HTTP 404"),
        (200, "<html>", "not JSON"),
        (200, '{"choices": []}', "unknown shape"),
        (200, '{"choices": [{"message": null}]}', "unknown shape"),
    ],
)
def test_a_bad_answer_fails_and_is_kept(status: int, text: str, says: str) -> None:
    answer = openai_chat.read_response(status, text, 0.1)
    assert answer.failed
    assert says in (answer.error or "")
    assert answer.raw == text


def test_a_nan_that_came_as_an_error_is_no_failure() -> None:
    text = '{"object": "error", "message": "Out of range float values are not JSON compliant"}'
    answer = openai_chat.read_response(500, text, 0.1)
    assert (answer.faces, answer.failed) == ({"http nan": 1}, False)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, None),
        ({"tool_call_parser": "qwen", "enable_cache_report": True}, None),
        ({"tool_call_parser": None}, "--tool-call-parser"),
        ({"enable_cache_report": False}, "--enable-cache-report"),
    ],
)
def test_what_a_server_lacks(raw: dict[str, Any], says: str | None) -> None:
    found = openai_chat.cannot(ServerFacts("sglang", "0.5.21", "m", raw=raw))
    assert found is None if says is None else says in (found or "")
