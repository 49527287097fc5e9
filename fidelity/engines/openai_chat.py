"""The OpenAI chat endpoint of a server, for what only it has: the fields of a tool call."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx

from fidelity.engines import json_reader
from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import Request
from fidelity.engines.wire import post, read_body
from fidelity.observations import Answer

PATH = "/v1/chat/completions"


def complete(client: httpx.Client, request: Request, timeout: float | None = None) -> Answer:
    """Send the chat of a request (`Request.chat`: model, messages, tools) in the request's namespace. Never
    retries, never raises on a bad answer."""
    body = {
        **(request.chat or {}),
        "temperature": request.temperature,
        "max_tokens": request.max_new_tokens,
        "logprobs": True,
        "extra_key": request.namespace,
    }
    if request.dp_rank is not None:
        body[request.dp_key] = request.dp_rank
    reply = post(client, PATH, body, timeout)
    return reply if isinstance(reply, Answer) else read_response(reply.status, reply.text, reply.latency)


def read_response(status: int, text: str, latency: float) -> Answer:
    """The one answer of a chat completion; the raw body is kept where anything about it is odd."""
    return read_body(status, text, latency, lambda data: _read(data, latency, text))


def cannot(facts: ServerFacts) -> str | None:
    """Why a server's chat endpoint can prove nothing about tool calls on a cache hit; None where it may."""
    if "tool_call_parser" in facts.raw and not facts.raw["tool_call_parser"]:
        return "the server parses no tool calls (--tool-call-parser)"
    if facts.raw.get("enable_cache_report") is False:
        return "the server's chat endpoint reports no cached tokens (--enable-cache-report)"
    return None


def _read(data: Mapping[str, Any], latency: float, text: str) -> Answer:
    choice = data["choices"][0]
    message = choice["message"]
    calls = [
        {"name": str(call["function"].get("name")), "arguments": str(call["function"].get("arguments"))}
        for call in message.get("tool_calls") or []
    ]
    faces: Counter[str] = Counter()
    entries = (choice.get("logprobs") or {}).get("content") or []
    logprobs = [json_reader.number(entry.get("logprob"), faces) for entry in entries]
    usage = data.get("usage") or {}
    # Releases up to 0.5.21 report a miss as no details at all.
    details = usage.get("prompt_tokens_details") or {"cached_tokens": 0}
    return Answer(
        status=200,
        latency=latency,
        text=message.get("content") or "",
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        finish_reason=choice.get("finish_reason"),
        logprobs=logprobs,
        faces=dict(faces),
        values=len(logprobs),
        raw=text[:20_000] if faces else None,
        tool_calls=calls,
    )
