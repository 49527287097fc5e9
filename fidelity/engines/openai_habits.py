"""What a server with the public API takes and tells beyond what the API promises, learnt from a few sends
before anything is measured."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from fidelity.engines.facts import ServerFacts
from fidelity.engines.openai_answer import read_response
from fidelity.engines.salt import salt, salted
from fidelity.engines.wire import check_allowed, post
from fidelity.errors import NotWhatWasAskedError, UnreachableError
from fidelity.observations import Answer
from fidelity.prompts.growth import filler

PATH = "/v1/chat/completions"
API_TOP = 20
"""As many top logprobs as the API allows."""

FEWER = (11, 5)
SENDS = 4
"""Requests by which habits are learnt, where nothing is refused."""

_QUESTION = f"{filler(120)}. What is the capital of France? Reply with the name only."
_TRIES = 4

NO_CACHED = (
    "its usage tells no cached_tokens for a prompt that was sent twice, so no hit is proven (vLLM tells them "
    "with --enable-prompt-tokens-details, sglang with --enable-cache-report)"
)
NO_LOGPROBS = "its answers have no logprobs: texts are compared, and distributions are not"


@dataclass(frozen=True)
class Habits:
    """`top`: most top logprobs that it takes, 0 where it gives none; `extras`: fields of every request;
    `silent_misses`: no cached_tokens means none were; `take(n)` counts requests against the run's limit."""

    model: str = "default"
    extras: Mapping[str, Any] = field(default_factory=dict)
    top: int = API_TOP
    silent_misses: bool = False
    take: Callable[[int], None] = lambda count: None


_HABITS: WeakKeyDictionary[httpx.Client, Habits] = WeakKeyDictionary()


def habits_of(client: httpx.Client) -> Habits:
    """Those learnt of the server behind this client; by default what the API promises."""
    return _HABITS.get(client, Habits())


def body(
    habits: Habits,
    messages: Sequence[Mapping[str, str]],
    namespace: str,
    *,
    tokens: int = 1,
    top: int = 0,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """The JSON of one chat completion in its namespace; `top` logprobs per token, without any at 0."""
    asked = {"logprobs": True, "top_logprobs": top} if top else {}
    return {
        "model": habits.model,
        "messages": salted(messages, namespace),
        "temperature": temperature,
        "max_tokens": tokens,
        **asked,
        **habits.extras,
    }


def learn(
    client: httpx.Client, facts: ServerFacts, thinking: bool, run_id: str, take: Callable[[int], None]
) -> ServerFacts:
    """Send SENDS requests (more where some are refused) and keep what the server takes. The facts get what it
    lacks. Raises UnreachableError, NotWhatWasAskedError, and as `take`."""
    habits = Habits(model=facts.names[0], take=take)
    extras: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinking}}
    question = [{"role": "user", "content": _QUESTION}]
    first, habits = _first(client, replace(habits, extras=extras), question, f"{run_id}/habits")
    again = _sent(client, habits, body(habits, question, f"{run_id}/habits", top=habits.top))
    lacks, notes = dict(facts.lacks), list(facts.notes)
    if not first.logprobs and not first.faces:
        habits, lacks["logprobs"] = replace(habits, top=0), NO_LOGPROBS
        notes.append(NO_LOGPROBS)
    elif habits.top < API_TOP:
        notes.append(f"the server gives at most {habits.top} top logprobs, so less of each distribution")
    if not again.cached_tokens:
        lacks["cached_tokens"] = NO_CACHED
        notes.append(NO_CACHED)
    elif first.cached_tokens is None:
        habits = replace(habits, silent_misses=True)
    if not habits.extras:
        notes.append(
            "the server takes no chat_template_kwargs: its template decides whether a thought comes first"
        )
    if (first.text or "").lstrip().startswith("<think"):
        notes.append("the answers begin with a thought: their first tokens say little")
    _HABITS[client] = habits
    shared = max(_length(client, [{"role": "user", "content": ""}], f"{run_id}/{n}") for n in range(2))
    notes.append(
        f"cold sends differ by a salt of {len(salt(''))} characters in the prompt, as the API has no cache "
        f"namespaces: up to {shared} tokens before its end may come from the cache, two cold sends are not "
        "of the same tokens, and so no run-to-run floor is measured; a hit has its cold send's very tokens"
    )
    return replace(facts, salt=shared, lacks=lacks, notes=tuple(notes))


def count(client: httpx.Client) -> Callable[[list[dict[str, str]]], int]:
    """Learns a conversation's tokens, its salt included, from `usage.prompt_tokens` of one new token. Raises
    UnreachableError, NotWhatWasAskedError, and as `Habits.take`."""
    return lambda messages: _length(client, messages, "lengths")


def _length(client: httpx.Client, messages: list[dict[str, str]], namespace: str) -> int:
    habits = habits_of(client)
    answer = _sent(client, habits, body(habits, messages, namespace))
    if answer.prompt_tokens is None:
        raise NotWhatWasAskedError(
            f"{PATH} tells no usage.prompt_tokens: {answer.error or 'the answer has no usage'}",
            "without it the length of a prompt is not known, and nothing can be measured",
        )
    return answer.prompt_tokens


def _first(
    client: httpx.Client, habits: Habits, question: list[dict[str, str]], namespace: str
) -> tuple[Answer, Habits]:
    """The first answer that is not refused, and what was asked for then."""
    refused = ""
    for top in (API_TOP, *FEWER, 0):
        for extras in (habits.extras, {}):
            asked = replace(habits, top=top, extras=extras)
            answer = _sent(client, asked, body(asked, question, namespace, top=top))
            if answer.status != 400 or answer.faces:
                if answer.failed:
                    raise NotWhatWasAskedError(f"{PATH} answers with {answer.error}", _hint(answer))
                return answer, asked
            refused = answer.error or ""
    raise NotWhatWasAskedError(
        f"{PATH} refuses every request: {refused}", "name its model with --served-model"
    )


def _hint(answer: Answer) -> str:
    if re.search("model", answer.error or "", re.IGNORECASE):
        return "name its model with --served-model"
    return "give the address of the server itself, not of a page in front of it; --engine names its API"


def _sent(client: httpx.Client, habits: Habits, asked: Mapping[str, Any]) -> Answer:
    """One unmeasured answer; sent again where the server asks to wait, which the client then does."""
    for _ in range(_TRIES):
        habits.take(1)
        reply = post(client, PATH, asked)
        answer = (
            reply if isinstance(reply, Answer) else read_response(reply.status, reply.text, reply.latency)
        )
        if answer.status not in (429, 503):
            break
    check_allowed(answer.status, client)
    if answer.status in (0, 429, 503):
        raise UnreachableError(f"no answer from {client.base_url}{PATH.removeprefix('/')}: {answer.error}")
    return answer
