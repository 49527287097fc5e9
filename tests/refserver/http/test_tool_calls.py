"""Tool calls of the embedded engine's chat endpoint: a JSON object of the only tool's parameters is one."""

from typing import Any

import pytest

from fidelity.refserver.tool_calls import PARSER, tool_calls

from .conftest import Client

TOOL = {
    "type": "function",
    "function": {"name": "give_city", "parameters": {"type": "object", "properties": {"city": {}}}},
}


def test_the_arguments_alone_are_a_call_of_the_only_tool() -> None:
    calls = tool_calls('{"city": "Paris"}\n', {"tools": [TOOL]})
    assert calls is not None
    (call,) = calls
    assert call["id"].startswith("call_")
    assert (call["type"], call["index"]) == ("function", 0)
    assert call["function"] == {"name": "give_city", "arguments": '{"city": "Paris"}'}


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("Hg", {"tools": [TOOL]}),
        ('{"city": "Paris"', {"tools": [TOOL]}),
        ('["Paris"]', {"tools": [TOOL]}),
        ('{"town": "Paris"}', {"tools": [TOOL]}),
        ('{"city": "Paris"}', {}),
        ('{"city": "Paris"}', {"tools": None}),
        ('{"city": "Paris"}', {"tools": ["give_city"]}),
        ('{"city": "Paris"}', {"tools": [TOOL, TOOL]}),
        ('{"city": "Paris"}', {"tools": [TOOL], "tool_choice": "none"}),
    ],
)
def test_anything_else_is_text(text: str, body: dict[str, Any]) -> None:
    assert tool_calls(text, body) is None


def test_an_answer_without_a_call_is_sent_as_text(clean: Client, namespace: str) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"messages": messages, "tools": [TOOL], "max_tokens": 3, "temperature": 0, "extra_key": namespace}
    (choice,) = clean.post("/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["tool_calls"] is None
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] in ("length", "stop")
    assert clean.http.get("/model_info").json()["tool_call_parser"] == PARSER
