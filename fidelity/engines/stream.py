"""Streamed `/generate`: the same answers, and when their tokens came.

Times are counted by the server's own token counts, not by events: one event can bring several tokens, as it
does under speculative decoding.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx

from fidelity.engines import json_reader
from fidelity.engines.request import Request
from fidelity.engines.sglang import read_response, request_body
from fidelity.observations import Answer

DONE = "[DONE]"
_LOGPROB_KEYS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob")

clock = time.perf_counter


def generate_all(
    client: httpx.Client, requests: Sequence[Request], timeout: float | None = None
) -> list[Answer]:
    """Each as a request of its own, all in flight at once, each within `timeout` seconds (the client's own
    when None or shorter). Never retries; a stream that stalls or breaks is a failed answer."""
    limits = [limit for limit in (timeout, client.timeout.read) if limit is not None]
    limit = min(limits, default=None)
    if len(requests) == 1:
        return [_generate(client, requests[0], limit)]
    ready = threading.Barrier(len(requests))

    def send(request: Request) -> Answer:
        ready.wait()
        return _generate(client, request, limit)

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, requests))


def tokens_per_second(answers: Sequence[Answer]) -> float:
    """Tokens of answers that were sent together, over the seconds until the last one ended."""
    return sum(len(answer.output_ids) for answer in answers) / max(answer.latency for answer in answers)


def time_per_token(answer: Answer) -> float | None:
    """Seconds from one token to the next after the first event; None where all came at once, as from
    something on the way that holds a stream back."""
    after = len(answer.output_ids) - (answer.first_count or 0)
    if answer.first_token is None or after <= 0 or answer.latency <= answer.first_token:
        return None
    return (answer.latency - answer.first_token) / after


def read_events(events: Iterable[tuple[float, str]]) -> Answer:
    """The answer of a stream, from (seconds since the request, text of a `data:` line) pairs.

    sglang's events hold the whole answer so far, or under --incremental-streaming-output what is new; the
    token count is of the whole in both.
    """
    ids: list[int] = []
    texts: list[str] = []
    first: float | None = None
    count = first_count = 0
    last = 0.0
    final = data = ""
    try:
        for seconds, data in events:
            if data == DONE:
                # Read on to the end, or the connection could not be used again.
                continue
            item = json_reader.parse(data)
            if "error" in item:
                return _failed(last or seconds, json_reader.error_message(item, data), ids, data)
            told = _count(item)
            new = item.get("output_ids") or []
            whole = len(new) >= told
            ids = list(new) if whole else [*ids, *new]
            texts = [item.get("text") or ""] if whole else [*texts, item.get("text") or ""]
            if told > count:
                last = seconds
                if first is None:
                    first, first_count = seconds, told
                count = told
            if item["meta_info"].get("finish_reason"):
                final = data
    except httpx.RequestError as exc:
        return _failed(last, f"the stream broke: {type(exc).__name__}: {exc}", ids, data)
    except (ValueError, TypeError, LookupError, AttributeError) as exc:
        return _failed(last, f"an event has an unknown shape ({type(exc).__name__}: {exc})", ids, data)
    if not final:
        return _failed(last, "the stream ended before the answer did", ids, data)
    (answer,) = read_response(200, final, last)
    if len(ids) != count and answer.error is None:
        return _failed(last, f"the events hold {len(ids)} of {count} tokens", ids, final)
    return replace(
        answer, output_ids=ids, text="".join(texts), first_token=first, first_count=first_count or None
    )


def _generate(client: httpx.Client, request: Request, limit: float | None) -> Answer:
    body = {k: v for k, v in request_body([request], single=True).items() if k not in _LOGPROB_KEYS}
    start = clock()
    try:
        with client.stream("POST", "/generate", json={**body, "stream": True}, timeout=limit) as response:
            # A rate limit makes the request wait before it leaves.
            start += response.request.extensions.get("waited", 0.0)
            if response.status_code != 200 or "event-stream" not in response.headers.get("content-type", ""):
                response.read()
                (answer,) = read_response(response.status_code, response.text, clock() - start)
                return replace(answer, error=answer.error or "the server did not stream its answer")
            return read_events(_events(response, start, limit))
    except httpx.RequestError as exc:
        return Answer(status=0, latency=clock() - start, error=f"{type(exc).__name__}: {exc}")


def _events(response: httpx.Response, start: float, limit: float | None) -> Iterator[tuple[float, str]]:
    """Split at line feeds only: JSON text may hold other characters that count as line ends elsewhere."""
    rest = b""
    for chunk in response.iter_bytes():
        seconds = clock() - start
        # The client's own limit is on the wait for the next bytes, and a server may send comments for ever.
        if limit is not None and seconds > limit:
            raise httpx.ReadTimeout(f"no whole answer within {limit:g} s")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield seconds, line[5:].decode("utf-8", "replace").strip()


def _count(item: dict[str, Any]) -> int:
    told = item["meta_info"].get("completion_tokens")
    return told if type(told) is int else len(item.get("output_ids") or [])


def _failed(seconds: float, error: str, ids: list[int], data: str) -> Answer:
    return Answer(status=200, latency=seconds, error=error, output_ids=ids, raw=data[:20_000])
