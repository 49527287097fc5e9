"""llama.cpp's own API: `/completion` with token ids, `/apply-template`, `/tokenize`, `/props`, `/slots`.

The server knows no namespaces: a fresh one is a send with the prompt cache switched off, and what is sent
again in it is served from whatever slot 0 holds, which the counts of each answer tell.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx

from fidelity.engines import json_reader
from fidelity.engines.llamacpp_facts import facts, look, recognise
from fidelity.engines.llamacpp_tokenizer import LlamacppTokenizer
from fidelity.engines.request import Request
from fidelity.engines.wire import alive, parsed, post, shaped, unusable
from fidelity.observations import Answer, Row
from fidelity.prompts.tokenizers import ChatTokenizer, Post

__all__ = ["answers", "call", "facts", "generate", "generate_batch", "look", "recognise", "tokenizer"]

MORE = 1000
"""At most so many further top logprobs, else ten times as many, where some ids are wanted: none can be asked
for by id."""

_FIELDS = ["content", "tokens", "stop_type", "timings", "completion_probabilities"]
"""Of an answer: all but the prompt and the settings, which it repeats at length."""

_PLAIN = {"samplers": ["temperature"], "post_sampling_probs": False, "repeat_penalty": 1.0}
"""Whatever the server's own defaults are: no penalty, nothing cut from the distribution."""


def tokenizer(client: httpx.Client, post: Post, thinking: bool) -> ChatTokenizer:
    """By its /apply-template and /tokenize."""
    return LlamacppTokenizer(post, thinking)


def generate(client: httpx.Client, request: Request, timeout: float | None = None) -> Answer:
    """Send one request and read the whole answer, within `timeout` seconds (the client's own
    when None or shorter). Never retries, never raises on a bad answer."""
    found = _post(client, [request], timeout, single=True)
    return found[0] if found else Answer(status=200, latency=0.0, error="the answer is an empty list")


def generate_batch(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None = None
) -> list[Answer]:
    """One list-valued request, for as many slots as are free; all must share every option."""
    return _post(client, requests, timeout, single=False)


def answers(client: httpx.Client) -> bool:
    """Does the server still answer, by an endpoint that computes nothing?"""
    return alive(client, "/props")


def call(requests: Sequence[Request], *, single: bool) -> tuple[str, dict[str, Any]]:
    """The path and the JSON body by which these are sent."""
    first = requests[0]
    prompts = [list(one.input_ids) if one.text is None else one.text for one in requests]
    body: dict[str, Any] = {
        "prompt": prompts[0] if single else prompts,
        "n_predict": first.max_new_tokens,
        "temperature": first.temperature,
        "n_probs": min(10 * first.top_k, first.top_k + MORE) if first.ask else first.top_k,
        "cache_prompt": not first.fresh,
        "return_tokens": True,
        "response_fields": _FIELDS,
        **_PLAIN,
    }
    if single:
        body["id_slot"] = 0
    if first.ignore_eos:
        body["ignore_eos"] = True
    return "/completion", body


def _post(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None, *, single: bool
) -> list[Answer]:
    reply = post(client, *call(requests, single=single), timeout)
    if isinstance(reply, Answer):
        return [replace(reply) for _ in requests]
    return read_response(reply.status, reply.text, reply.latency, requests)


def read_response(status: int, text: str, latency: float, requests: Sequence[Request]) -> list[Answer]:
    """The answers of one HTTP response; every oddity is kept with the raw body."""
    data = parsed(text)
    if status != 200 or data is None:
        return [unusable(status, data, text, latency)] * len(requests)
    items = data if isinstance(data, list) else [data]
    return [
        shaped(partial(_read_item, item, request, latency, text), text, latency)
        for item, request in zip(items, requests, strict=False)
    ]


def _read_item(item: Mapping[str, Any], request: Request, latency: float, text: str) -> Answer:
    faces: Counter[str] = Counter()
    entries = item.get("completion_probabilities") or []
    told = [int(entry["id"]) for entry in entries]
    chosen = [json_reader.number(entry.get("logprob"), faces) for entry in entries]
    rows = [_row(entry.get("top_logprobs"), faces) for entry in entries]
    ids = [int(token) for token in item.get("tokens") or []] or told
    # A token that ends amid a character has no entry: logprobs are known up to the first such.
    known = next((n for n, pair in enumerate(zip(ids, told, strict=False)) if pair[0] != pair[1]), len(told))
    mismatched = len(told) > len(ids) or (len(told) == len(ids) and known < len(ids))
    timings = item.get("timings") or {}
    cached, computed = _count(timings.get("cache_n")), _count(timings.get("prompt_n"))
    reason = item.get("stop_type")
    return Answer(
        status=200,
        latency=latency,
        text=item.get("content"),
        output_ids=ids,
        prompt_tokens=None if cached is None or computed is None else cached + computed,
        cached_tokens=cached,
        finish_reason=str(reason) if reason else None,
        logprobs=chosen[:known],
        top=[row[: request.top_k] for row in rows[:known]],
        asked=_asked(rows[:known], request.ask),
        faces=dict(faces),
        values=len(chosen) + sum(map(len, rows)),
        mismatched=mismatched,
        raw=text[:20_000] if faces or mismatched else None,
    )


def _row(entries: Sequence[Mapping[str, Any]] | None, faces: Counter[str]) -> Row:
    return [(int(entry["id"]), json_reader.number(entry.get("logprob"), faces)) for entry in entries or []]


def _asked(rows: Sequence[Row], ask: Sequence[int]) -> list[Row]:
    """Of each row the ids that were wanted, as far as they are among those told."""
    wanted = set(ask)
    return [[pair for pair in row if pair[0] in wanted] for row in rows] if wanted else []


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
