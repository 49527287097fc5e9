"""`/generate`: the native generation endpoint, with the reply's exact keys."""

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from .errors import BadRequestError, ClientGoneError, EngineError
from .logprobs import Entry, Quoted
from .progress import answers, body_of, progress
from .replies import DONE, event, json_reply, native_error
from .requests import Generate, parse_generate
from .sequence import Sequence
from .service import Service
from .speculative import spec_fields
from .text import Text

CLIENT_CLOSED = 499  # the status the access logs of proxies give a request whose client left


async def generate(http: HttpRequest) -> Response:
    """Handle one request to `/generate`."""
    service: Service = http.app.state.service
    try:
        parsed = parse_generate(await body_of(http), service.text.encode, service.limits)
        if parsed.stream:
            return StreamingResponse(_stream(service, parsed), media_type="text/event-stream")
        sequences = await answers(http, service.scheduler, parsed.requests)
    except BadRequestError as error:
        return native_error(str(error))
    except EngineError as error:
        return native_error(str(error), 500)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED)
    items = [answer(service.text, sequence, len(sequence.output_ids), final=True) for sequence in sequences]
    for item in items:
        item["meta_info"]["response_sent_to_client_ts"] = time.time()
    return json_reply(items if parsed.is_list else items[0], service.settings.nan_reply, native=True)


async def _stream(service: Service, parsed: Generate) -> AsyncIterator[bytes]:
    """Server-sent events; each holds the whole answer so far."""
    first = True
    async for index, sequence, tokens, finished in progress(service.scheduler, parsed.requests):
        if finished and sequence.failure:
            yield event({"error": {"message": sequence.failure, "code": 500}})
            continue
        item = answer(service.text, sequence, tokens, final=finished)
        if first:
            item["meta_info"]["response_sent_to_client_ts"] = time.time()
            first = False
        if parsed.is_list:
            item["index"] = index
        yield event(item, service.settings.nan_reply)
    yield DONE


def answer(text: Text, sequence: Sequence, tokens: int, *, final: bool) -> dict[str, Any]:
    """The reply for one sequence after its first `tokens` tokens."""
    reply: dict[str, Any] = {
        "text": answer_text(text, sequence, tokens, final=final),
        "output_ids": sequence.output_ids[:tokens],
        "meta_info": _meta_info(text, sequence, tokens, final),
    }
    if sequence.request.return_prompt_ids:
        reply["prompt_token_ids"] = sequence.request.ids.tolist()
    return reply


def answer_text(text: Text, sequence: Sequence, tokens: int, *, final: bool) -> str:
    """The text of the first `tokens` tokens, without what stopped it; an unfinished character waits."""
    sampling = sequence.request.sampling
    ids = sequence.output_ids[:tokens]
    matched = (sequence.finish or {}).get("matched") if final and not sampling.no_stop_trim else None
    if isinstance(matched, int):
        ids = ids[:-1]
    decoded = text.decode(ids, sampling.skip_special_tokens)
    if isinstance(matched, str):
        return decoded[: decoded.find(matched)] if matched in decoded else decoded
    return decoded if final else decoded.rstrip("�")


def _meta_info(text: Text, sequence: Sequence, tokens: int, final: bool) -> dict[str, Any]:
    request = sequence.request
    cached = sequence.reported_tokens
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": sequence.finish if final else None,
        "prompt_tokens": len(request.ids),
        "weight_version": "default",
        "num_retractions": 0,
    }
    if request.wanted is not None:
        meta |= _logprobs(text, sequence, tokens)
    meta |= {"reasoning_tokens": 0, "completion_tokens": tokens, "cached_tokens": cached}
    if final:
        meta["weight_versions"] = [{"version": "default", "start": 0, "end": tokens}]
    meta["cached_tokens_details"] = {"device": cached, "host": 0} if cached else None
    meta["dp_rank"] = None
    if final:
        meta["e2e_latency"] = sequence.ended - sequence.arrived
        meta |= spec_fields(sequence)
    return meta


def _logprobs(text: Text, sequence: Sequence, tokens: int) -> dict[str, Any]:
    wanted = sequence.request.wanted
    name = text.token if sequence.request.return_text else None

    def triple(logprob: float | None, token: int) -> list[Any]:
        return [logprob, token, name(token) if name else None]

    def triples(entries: list[Entry] | None) -> list[Any] | None:
        return None if entries is None else [triple(*entry) for entry in entries]

    def positions(quoted: Quoted, kind: str, count: int) -> list[Any]:
        return [triples(entries) for entries in getattr(quoted, kind)[:count]]

    prompt, output = sequence.prompt, sequence.output
    quoted = max(tokens, 1)  # with no new token, the one position after the prompt is quoted
    found: dict[str, Any] = {
        "input_token_logprobs": [triple(*entry) for entry in prompt.tokens],
        "output_token_logprobs": [triple(*entry) for entry in output.tokens[:tokens]],
        "output_token_logprobs_length": tokens,
    }
    if wanted is not None and wanted.top > 0:
        found["input_top_logprobs"] = positions(prompt, "top", len(prompt.top))
        found["output_top_logprobs"] = positions(output, "top", quoted)
    if wanted is not None and wanted.token_ids is not None:
        found["input_token_ids_logprobs"] = positions(prompt, "token_ids", len(prompt.token_ids))
        found["output_token_ids_logprobs"] = positions(output, "token_ids", quoted)
    return found
