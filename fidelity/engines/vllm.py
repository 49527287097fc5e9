"""vLLM's `/v1/completions` with token ids; scores by `prompt_logprobs`, cold sends by `cache_salt`.

Tokens are asked for as `token_id:N`: the keys of the logprobs are else their texts, which collide. No model
is named: the server then takes the one it serves.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from fidelity.engines import json_reader
from fidelity.engines.prometheus import scrape, total
from fidelity.engines.request import Request
from fidelity.engines.solitude import Load
from fidelity.engines.vllm_facts import facts, served, version
from fidelity.engines.wire import alive, post, read_body
from fidelity.observations import Answer, Row
from fidelity.prompts.tokenizers import ChatTokenizer, Post, ServerTokenizer

__all__ = ["answers", "call", "facts", "generate", "generate_batch", "look", "recognise", "tokenizer"]

PATH = "/v1/completions"
LONGEST_SALT = 128
_ID = "token_id:"


def recognise(client: httpx.Client) -> str | None:
    """By /version, and a model in /v1/models that vLLM owns."""
    if version(client) is None or served(client) is None:
        return None
    return "its /version, and a model in /v1/models that is owned by vllm"


def tokenizer(client: httpx.Client, post: Post, thinking: bool) -> ChatTokenizer:
    """By its /tokenize."""
    return ServerTokenizer(post, thinking)


def generate(client: httpx.Client, request: Request, timeout: float | None = None) -> Answer:
    """Send one request and read the whole answer, within `timeout` seconds (the client's own when None or
    shorter). Never retries, never raises on a bad answer."""
    rank = None if request.dp_rank is None else {"X-data-parallel-rank": str(request.dp_rank)}
    reply = post(client, *call([request], single=True), timeout, rank)
    if isinstance(reply, Answer):
        return reply
    return read_response(reply.status, reply.text, reply.latency, request)


def generate_batch(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None = None
) -> list[Answer]:
    """One after the other: vLLM makes requests of their own of a list, and no list can be a batch."""
    return [generate(client, request, timeout) for request in requests]


def call(requests: Sequence[Request], *, single: bool) -> tuple[str, dict[str, Any]]:
    """The path and the JSON body by which the first of these is sent."""
    request = requests[0]
    body: dict[str, Any] = {
        "prompt": list(request.input_ids) if request.text is None else request.text,
        # A scored prompt still asks for one token, which is left out of the answer.
        "max_tokens": max(request.max_new_tokens, 1),
        "temperature": request.temperature,
        "cache_salt": _salt(request.namespace),
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
    }
    if request.max_new_tokens:
        body["logprobs"] = request.top_k
    if request.score_from is not None:
        body["prompt_logprobs"] = request.top_k
    if request.ignore_eos:
        body["ignore_eos"] = True
    return PATH, body


def _salt(namespace: str) -> str:
    """vLLM takes no slash and no @ in a salt, and 128 characters at most."""
    salt = namespace.replace("/", "|").replace("@", "~")
    return salt if len(salt) <= LONGEST_SALT else hashlib.sha256(salt.encode()).hexdigest()


def answers(client: httpx.Client) -> bool:
    """Does the server still answer, by an endpoint that computes nothing?"""
    return alive(client, "/version")


def look(client: httpx.Client) -> Load | None:
    """The load by /metrics; None where it does not tell."""
    samples = scrape(client)
    running = total(samples, "vllm:num_requests_running")
    waiting = total(samples, "vllm:num_requests_waiting")
    if running is None or waiting is None:
        return None
    computed = total(samples, "vllm:prompt_tokens_by_source_total", source="local_compute")
    return Load(int(running + waiting), None if computed is None else int(computed))


def read_response(status: int, text: str, latency: float, request: Request) -> Answer:
    """The answer to `request` of one HTTP response; every oddity is kept with the raw body."""
    return read_body(status, text, latency, lambda data: _read(data, latency, text, request))


def _read(data: Mapping[str, Any], latency: float, text: str, request: Request) -> Answer:
    choice = data["choices"][0]
    usage = data.get("usage") or {}
    faces: Counter[str] = Counter()
    ids: list[int] = []
    chosen: list[float] = []
    top: list[Row] = []
    mismatched = False
    if request.max_new_tokens:
        told = choice.get("logprobs") or {}
        keys = [_token(key) for key in told.get("tokens") or []]
        ids = [int(token) for token in choice.get("token_ids") or keys]
        chosen = [json_reader.number(value, faces) for value in told.get("token_logprobs") or []]
        top = [_row(row, faces) for row in told.get("top_logprobs") or []]
        mismatched = bool(keys) and keys != ids
    scored: list[float] = []
    scored_top: list[Row] = []
    if request.score_from is not None:
        wanted = list(request.input_ids)[request.score_from :]
        rows = (choice.get("prompt_logprobs") or [])[request.score_from :]
        scored = [_scored(row, token, faces) for row, token in zip(rows, wanted, strict=False)]
        scored_top = [_first(row, request.top_k, faces) for row in rows]
        mismatched |= len(rows) != len(wanted) or not all(map(_holds, rows, wanted))
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        status=200,
        latency=latency,
        text=choice.get("text") if request.max_new_tokens else None,
        output_ids=ids,
        prompt_tokens=json_reader.count(usage.get("prompt_tokens")),
        cached_tokens=json_reader.count(details.get("cached_tokens")),
        finish_reason=choice.get("finish_reason"),
        logprobs=chosen,
        top=top,
        faces=dict(faces),
        values=len(chosen) + len(scored) + sum(map(len, (*top, *scored_top))),
        mismatched=mismatched,
        raw=text[:20_000] if faces or mismatched else None,
        scored=scored,
        scored_top=scored_top,
    )


def _token(key: str) -> int:
    """Raises ValueError for a key that is a text: which token it means is not known."""
    if not key.startswith(_ID):
        raise ValueError(f"{key!r} is no token id")
    return int(key.removeprefix(_ID))


def _row(row: Mapping[str, Any] | None, faces: Counter[str]) -> Row:
    return [(_token(key), json_reader.number(value, faces)) for key, value in (row or {}).items()]


def _holds(row: Mapping[str, Any] | None, token: int) -> bool:
    return bool(row) and str(token) in (row or {})


def _scored(row: Mapping[str, Any] | None, token: int, faces: Counter[str]) -> float:
    entry = (row or {}).get(str(token)) or {}
    return json_reader.number(entry.get("logprob"), faces)


def _first(row: Mapping[str, Any] | None, count: int, faces: Counter[str]) -> Row:
    """The first `count` by rank: the prompt's own token comes too, whatever its rank."""
    entries = [(int(key), entry) for key, entry in (row or {}).items()]
    return [
        (token, json_reader.number(entry.get("logprob"), faces))
        for token, entry in entries
        if entry.get("rank") is None or entry["rank"] <= count
    ]
