"""sglang's native API: `/generate` with token ids, `/tokenize`, `/server_info`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx

from fidelity.engines import json_reader
from fidelity.engines.facts import ServerFacts, read_facts
from fidelity.engines.request import Request
from fidelity.engines.solitude import look
from fidelity.engines.wire import alive, first_found, parsed, post, shaped, unusable
from fidelity.errors import NotWhatWasAskedError
from fidelity.observations import Answer, Row
from fidelity.prompts.tokenizers import ChatTokenizer, Post, ServerTokenizer

__all__ = ["answers", "call", "facts", "generate", "generate_batch", "look", "recognise", "tokenizer"]


def recognise(client: httpx.Client) -> str | None:
    """By /model_info, which no other engine has."""
    found = first_found(client, ("/model_info", "/get_model_info"))
    return None if found is None else "its /model_info"


def tokenizer(client: httpx.Client, post: Post, thinking: bool) -> ChatTokenizer:
    """By its /tokenize."""
    return ServerTokenizer(post, thinking)


def facts(client: httpx.Client) -> ServerFacts:
    """What the server says of itself. Raises UnreachableError, NotWhatWasAskedError."""
    info = first_found(client, ("/server_info", "/get_server_info"))
    model = first_found(client, ("/model_info", "/get_model_info"))
    if info is None or model is None:
        raise NotWhatWasAskedError(
            f"{client.base_url} answers, but not as an sglang server (no /server_info or /model_info)",
            "give the address of the sglang HTTP server itself, not of a router or a chat front end",
        )
    return read_facts(info, model)


def generate(client: httpx.Client, request: Request, timeout: float | None = None) -> Answer:
    """Send one request and read the whole answer, within `timeout` seconds (the client's own
    when None or shorter). Never retries, never raises on a bad answer."""
    found = _post(client, [request], timeout, single=True)
    return found[0] if found else Answer(status=200, latency=0.0, error="the answer is an empty list")


def generate_batch(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None = None
) -> list[Answer]:
    """One list-valued request: the engine admits it as one batch. All must share `max_new_tokens`, `top_k`,
    `temperature` and `ignore_eos`; `score_from` is a single request's."""
    return _post(client, requests, timeout, single=False)


def answers(client: httpx.Client) -> bool:
    """Does the server still answer, by an endpoint that computes nothing?"""
    return alive(client, "/model_info")


def _post(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None, *, single: bool
) -> list[Answer]:
    reply = post(client, *call(requests, single=single), timeout)
    if isinstance(reply, Answer):
        return [replace(reply) for _ in requests]
    first = requests[0]
    return read_response(
        reply.status,
        reply.text,
        reply.latency,
        len(requests),
        _scored(first),
        generated=first.max_new_tokens > 0,
    )


def _scored(request: Request) -> list[int] | None:
    """The ids whose prompt logprobs are wanted; None without any."""
    return None if request.score_from is None else list(request.input_ids)[request.score_from :]


def call(requests: Sequence[Request], *, single: bool) -> tuple[str, dict[str, Any]]:
    """The path and the JSON body by which these are sent."""
    return "/generate", request_body(requests, single=single)


def request_body(requests: Sequence[Request], *, single: bool) -> dict[str, Any]:
    """The JSON of one request, or of a list-valued one."""
    first = requests[0]
    sampling: dict[str, Any] = {"temperature": first.temperature, "max_new_tokens": first.max_new_tokens}
    if first.ignore_eos:
        sampling["ignore_eos"] = True
    body: dict[str, Any] = {
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": _start(first),
        "top_logprobs_num": first.top_k,
    }
    if single:
        body |= {"input_ids": list(first.input_ids)} if first.text is None else {"text": first.text}
        body["extra_key"] = first.namespace
        if first.ask:
            body["token_ids_logprob"] = list(first.ask)
        if first.dp_rank is not None:
            body[first.dp_key] = first.dp_rank
    else:
        texts = [request.text for request in requests]
        ids = [list(request.input_ids) for request in requests]
        body |= {"input_ids": ids} if None in texts else {"text": texts}
        body["extra_key"] = [request.namespace for request in requests]
        if any(request.ask for request in requests):
            body["token_ids_logprob"] = [list(request.ask) for request in requests]
        if first.dp_rank is not None:
            body[first.dp_key] = first.dp_rank
    return body


def _start(request: Request) -> int:
    """The first prompt position to quote: the token there comes without a logprob, and nothing from there on
    is taken from the cache. -1 quotes none."""
    if request.score_from is None:
        return -1
    return max(request.score_from - 1, 0) if request.max_new_tokens else 0


def read_response(
    status: int,
    text: str,
    latency: float,
    count: int = 1,
    scored: Sequence[int] | None = None,
    *,
    generated: bool = False,
) -> list[Answer]:
    """The `count` answers of one HTTP response; every oddity is kept with the raw body. `scored` are the last
    prompt tokens, where their logprobs were asked for; `generated`: new tokens were asked for beside them."""
    data = parsed(text)
    if status != 200 or data is None:
        return [unusable(status, data, text, latency)] * count
    items = data if isinstance(data, list) else [data]
    return [
        shaped(partial(_read_item, item, latency, text, scored, generated), text, latency) for item in items
    ]


def _read_item(item: Any, latency: float, text: str, wanted: Sequence[int] | None, generated: bool) -> Answer:
    meta = item["meta_info"]
    faces: Counter[str] = Counter()
    chosen = [
        json_reader.number(entry[0] if entry else None, faces)
        for entry in meta.get("output_token_logprobs") or []
    ]
    top = _rows(meta.get("output_top_logprobs"), faces)
    asked = _rows(meta.get("output_token_ids_logprobs"), faces)
    ids = [int(token) for token in item.get("output_ids") or []]
    told = [entry[1] for entry in meta.get("output_token_logprobs") or [] if entry]
    mismatched = any(one != other for one, other in zip(told, ids, strict=False))
    scored: list[float] = []
    scored_top: list[Row] = []
    if wanted is not None:
        if not generated:
            # The placeholder that a request without new tokens answers with is nobody's prediction.
            faces, chosen, top, ids = Counter(), [], [], []
            mismatched = False
        entries = (meta.get("input_token_logprobs") or [])[-len(wanted) :] if wanted else []
        scored = [json_reader.number(entry[0], faces) for entry in entries]
        if not generated:
            scored_top = _rows((meta.get("input_top_logprobs") or [])[-len(wanted) :], faces)
        mismatched |= not _are([int(entry[1]) for entry in entries], wanted)
    finish = meta.get("finish_reason")
    reason = finish.get("type") if isinstance(finish, dict) else finish
    if isinstance(finish, dict) and finish.get("matched") == "NaN happened":
        faces["finish nan"] += 1
    values = len(chosen) + len(scored) + sum(map(len, (*top, *asked, *scored_top)))
    error = finish.get("message") if isinstance(finish, dict) and reason == "abort" else None
    return Answer(
        status=200,
        latency=latency,
        error=str(error) if error else None,
        text=item.get("text"),
        output_ids=ids,
        prompt_tokens=json_reader.count(meta.get("prompt_tokens")),
        cached_tokens=json_reader.count(meta.get("cached_tokens")),
        finish_reason=str(reason) if reason else None,
        logprobs=chosen,
        top=top,
        asked=asked,
        faces=dict(faces),
        values=values,
        mismatched=mismatched,
        dp_rank=json_reader.count(meta.get("dp_rank")),
        raw=text[:20_000] if faces or error or mismatched else None,
        scored=scored,
        scored_top=scored_top,
        spec={name: float(value) for name, value in meta.items() if _is_spec(name, value)},
    )


def _are(told: Sequence[int], wanted: Sequence[int]) -> bool:
    """Are the scored tokens those that were sent? sglang tells the vocabulary's last id as 0 there."""
    if len(told) != len(wanted):
        return False
    same = [one == sent for one, sent in zip(told, wanted, strict=True)]
    return all(same) or (any(same) and all(one in (sent, 0) for one, sent in zip(told, wanted, strict=True)))


def _is_spec(name: str, value: Any) -> bool:
    return name.startswith("spec_") and type(value) in (int, float)


def _rows(positions: Any, faces: Counter[str]) -> list[Row]:
    rows = []
    for position in positions or []:
        rows.append([(int(entry[1]), json_reader.number(entry[0], faces)) for entry in position or []])
    return rows
