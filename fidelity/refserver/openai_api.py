"""`/v1/chat/completions` and `/v1/completions`: the OpenAI endpoints, with cached-token usage."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from .errors import BadRequestError, ClientGoneError, EngineError
from .generate_api import CLIENT_CLOSED, answer_text
from .openai_logprobs import chat_logprobs, completion_logprobs
from .openai_requests import chat_requests, completion_requests
from .progress import answers, body_of, progress
from .replies import DONE, event, json_reply, openai_error
from .requests import Request, new_rid
from .sequence import Sequence
from .service import Service
from .text import Text
from .tool_calls import tool_calls

Body = Mapping[str, Any]


@dataclass(frozen=True)
class _Endpoint:
    """What differs between the two: how requests are read, and what a choice and a chunk of one hold."""

    reply_object: str
    chunk_object: str
    read: Callable[[Service, Body], tuple[Request, ...]]
    choice: Callable[[Text, Sequence, Body], dict[str, Any]]
    chunk: Callable[[Text, Sequence, str, int, int], dict[str, Any]]
    opening: dict[str, Any] | None = None  # a chunk of its own before the first token


async def chat(http: HttpRequest) -> Response:
    """Handle one request to `/v1/chat/completions`."""
    return await _serve(http, _CHAT)


async def completions(http: HttpRequest) -> Response:
    """Handle one request to `/v1/completions`."""
    return await _serve(http, _COMPLETION)


async def _serve(http: HttpRequest, endpoint: _Endpoint) -> Response:
    service: Service = http.app.state.service
    try:
        body = await body_of(http)
        requests = endpoint.read(service, body)
        if body.get("stream") is True:
            events = _stream(service, body, requests, endpoint)
            return StreamingResponse(events, media_type="text/event-stream")
        sequences = await answers(http, service.scheduler, requests)
    except BadRequestError as error:
        return openai_error(str(error))
    except EngineError as error:
        return openai_error(str(error), 500)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED)
    choices = []
    for index, sequence in enumerate(sequences):
        choice = {"index": index, **endpoint.choice(service.text, sequence, body), **_ending(sequence)}
        if choice.get("message", {}).get("tool_calls") and choice["finish_reason"] == "stop":
            choice["finish_reason"] = "tool_calls"
        if body.get("return_token_ids") is True:
            choice |= _token_ids(sequence, endpoint)
        choices.append(choice)
    tokens = len(sequences[0].output_ids)
    reply = _envelope(body, sequences[0].request.rid, endpoint.reply_object) | {
        "choices": choices,
        "usage": _usage(service, sequences),
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": tokens}],
        },
    }
    return json_reply(reply, service.settings.nan_reply, native=False)


async def _stream(
    service: Service, body: Body, requests: tuple[Request, ...], endpoint: _Endpoint
) -> AsyncIterator[bytes]:
    """Chunks with what each new token added; the last of a choice says why it ended."""
    head = _envelope(body, new_rid(), endpoint.chunk_object)

    def chunk(index: int, part: dict[str, Any], **ending: Any) -> bytes:
        choice = {"index": index, **part, "finish_reason": None, "matched_stop": None} | ending
        return event(head | {"choices": [choice]}, service.settings.nan_reply)

    sent = [0] * len(requests)  # characters
    quoted = [0] * len(requests)  # tokens
    seen: dict[int, Sequence] = {}
    async for index, sequence, tokens, finished in progress(service.scheduler, requests):
        if finished and sequence.failure:
            yield event({"object": "error", "message": sequence.failure, "code": 500})
            continue
        if index not in seen and endpoint.opening is not None:
            yield chunk(index, endpoint.opening)
        seen[index] = sequence
        text = answer_text(service.text, sequence, tokens, final=finished)
        part = endpoint.chunk(service.text, sequence, text[sent[index] :], quoted[index], tokens)
        sent[index], quoted[index] = max(sent[index], len(text)), tokens
        yield chunk(index, part)
        if finished:
            yield chunk(
                index, endpoint.chunk(service.text, sequence, "", tokens, tokens), **_ending(sequence)
            )
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield event(head | {"choices": [], "usage": _usage(service, list(seen.values()))})
    yield DONE


def _envelope(body: Body, rid: str, kind: str) -> dict[str, Any]:
    model = body.get("model") or "default"
    return {"id": rid, "object": kind, "created": int(time.time()), "model": model}


def _ending(sequence: Sequence) -> dict[str, Any]:
    finish = sequence.finish or {}
    return {"finish_reason": finish.get("type"), "matched_stop": finish.get("matched")}


def _usage(service: Service, sequences: list[Sequence]) -> dict[str, Any]:
    prompt = sum(len(sequence.request.ids) for sequence in sequences)
    completion = sum(len(sequence.output_ids) for sequence in sequences)
    counts = [sequence.reported_tokens for sequence in sequences]
    cached = sum(count for count in counts if count is not None)
    report = service.settings.enable_cache_report and cached > 0
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached} if report else None,
        "reasoning_tokens": 0,
    }


def _token_ids(sequence: Sequence, endpoint: _Endpoint) -> dict[str, list[int]]:
    name = "response_token_ids" if endpoint is _CHAT else "token_ids"
    return {"prompt_token_ids": sequence.request.ids.tolist(), name: list(sequence.output_ids)}


def _chat_choice(text: Text, sequence: Sequence, body: Body) -> dict[str, Any]:
    tokens = len(sequence.output_ids)
    content: str | None = answer_text(text, sequence, tokens, final=True)
    calls = tool_calls(content or "", body)
    content = None if calls else content
    return {
        "message": {"role": "assistant", "content": content, "reasoning_content": None, "tool_calls": calls},
        "logprobs": chat_logprobs(text, sequence, 0, tokens),
    }


def _chat_chunk(text: Text, sequence: Sequence, added: str, start: int, end: int) -> dict[str, Any]:
    return {"delta": {"content": added}, "logprobs": chat_logprobs(text, sequence, start, end)}


def _completion_choice(text: Text, sequence: Sequence, body: Body) -> dict[str, Any]:
    tokens = len(sequence.output_ids)
    echo = body.get("echo") is True
    before = text.decode(sequence.request.ids.tolist()) if echo else ""
    return {
        "text": before + answer_text(text, sequence, tokens, final=True),
        "logprobs": completion_logprobs(text, sequence, 0, tokens, echo),
    }


def _completion_chunk(text: Text, sequence: Sequence, added: str, start: int, end: int) -> dict[str, Any]:
    return {"text": added, "logprobs": completion_logprobs(text, sequence, start, end, echo=False)}


_CHAT = _Endpoint(
    "chat.completion",
    "chat.completion.chunk",
    chat_requests,
    _chat_choice,
    _chat_chunk,
    {"delta": {"role": "assistant", "content": ""}, "logprobs": None},
)
_COMPLETION = _Endpoint(
    "text_completion", "text_completion", completion_requests, _completion_choice, _completion_chunk
)
