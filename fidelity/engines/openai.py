"""Any server with the public OpenAI chat API: nothing is used that the API does not promise, or that the
server has not shown to take.

There are no token ids in it: prompts are chat messages (`Counted`), tokens are keyed by their bytes, and a
namespace is a salt in the prompt.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx

from fidelity.engines.facts import ServerFacts
from fidelity.engines.openai_answer import read_response
from fidelity.engines.openai_habits import PATH, Habits, body, count, habits_of
from fidelity.engines.request import Request
from fidelity.engines.secrets import scrub
from fidelity.engines.solitude import Load
from fidelity.engines.wire import first_found, post
from fidelity.observations import Answer
from fidelity.prompts.counted import Counted, CountingTokenizer
from fidelity.prompts.tokenizers import ChatTokenizer, Post, mode

TEXT_TOKENS = 8
"""New tokens of an answer without logprobs: one word of text says too little."""

LACKS = {
    "ids": "the chat API takes messages, not token ids",
    "scores": "the chat API tells no logprobs of prompt tokens",
    "list": "the chat API takes one conversation a request",
    "stream": "the chat API is not streamed here: its events tell no token counts",
    "tools": "tool calls are not learnt through the bare chat API",
}


def recognise(client: httpx.Client) -> str | None:
    """By /v1/models, which most servers have: the last to be asked."""
    found = first_found(client, ("/v1/models",))
    return "its /v1/models" if found is not None and isinstance(found.get("data"), list) else None


def facts(client: httpx.Client) -> ServerFacts:
    """The names of its models; a server whose /v1/models tells none is taken at its address. Its grid is not
    told: full reuse is assumed until a few sends have found it."""
    found = scrub(first_found(client, ("/v1/models",)) or {})
    models = [one for one in found.get("data") or [] if isinstance(one, dict) and one.get("id")]
    names = [str(one["id"]) for one in models]
    lacks = LACKS if names else {**LACKS, "models": "its /v1/models tells no names"}
    notes = []
    if len(names) > 1:
        notes.append(f"{len(names)} models are served: --served-model names one, else it is {names[0]}")
    return ServerFacts(
        engine="openai",
        version="unknown",
        model=names[0] if names else "default",
        grid=1,
        strategy="attention only",
        grid_known=False,
        notes=tuple(notes),
        lacks=lacks,
        raw={"models": names, "owned_by": sorted({str(one.get("owned_by")) for one in models})},
    )


def tokenizer(client: httpx.Client, post: Post, thinking: bool) -> ChatTokenizer:
    """Lengths by usage.prompt_tokens."""
    return CountingTokenizer(count(client), f"server {PATH}, usage.prompt_tokens, {mode(thinking)}")


def generate(client: httpx.Client, request: Request, timeout: float | None = None) -> Answer:
    """Send one request and read the whole answer. Never retries, never raises on a bad answer."""
    habits = habits_of(client)
    reply = post(client, PATH, _body(request, habits), timeout)
    if isinstance(reply, Answer):
        return reply
    answer = read_response(reply.status, reply.text, reply.latency)
    if habits.silent_misses and answer.cached_tokens is None and answer.prompt_tokens is not None:
        return replace(answer, cached_tokens=0)
    return answer


def generate_batch(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None = None
) -> list[Answer]:
    """One after the other: the API has no request of several."""
    return [generate(client, request, timeout) for request in requests]


def call(requests: Sequence[Request], *, single: bool) -> tuple[str, dict[str, Any]]:
    """The path and the JSON body of the first of these, as an unknown server would take it."""
    return PATH, _body(requests[0], Habits())


def answers(client: httpx.Client) -> bool:
    """Does the server still answer? Whatever it says: some have no such page, or one that fails."""
    try:
        client.get("/v1/models", timeout=10)
    except httpx.TransportError:
        return False
    return True


def look(client: httpx.Client) -> Load | None:
    """The API tells no load."""
    return None


def _body(request: Request, habits: Habits) -> dict[str, Any]:
    if not isinstance(request.input_ids, Counted):
        raise TypeError("the chat API takes messages, not token ids")
    return body(
        habits,
        request.input_ids.messages,
        request.namespace,
        tokens=request.max_new_tokens if habits.top else max(request.max_new_tokens, TEXT_TOKENS),
        top=min(request.top_k, habits.top),
        temperature=request.temperature,
    )
