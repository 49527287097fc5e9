"""Streams told by hand: when tokens came, by the server's counts, and every way that one can break."""

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.engines import stream
from fidelity.engines.request import Request
from fidelity.engines.stream import generate_all, read_events, time_per_token, tokens_per_second
from fidelity.observations import Answer
from fidelity.servers.credentials import Discreet

URL = "http://fake"
RECORDED = json.loads((Path(__file__).parent / "samples" / "streams.json").read_text(encoding="utf-8"))


def event(
    ids: Sequence[int], count: int | None = None, finish: Any = None, text: str | None = None, **meta: Any
) -> str:
    told = {"completion_tokens": len(ids) if count is None else count, "finish_reason": finish, **meta}
    known = {"prompt_tokens": 7, "cached_tokens": 4}
    said = "".join(map(chr, ids)) if text is None else text
    return json.dumps(
        {"text": said, "output_ids": list(ids), "meta_info": {**known, **told}}, ensure_ascii=False
    )


LENGTH = {"type": "length", "length": 3}
WHOLE = [
    (0.5, event([65])),
    (0.6, event([65, 66])),
    (0.9, event([65, 66, 67], finish=LENGTH)),
    (0.9, "[DONE]"),
]


def test_times_are_those_of_the_tokens() -> None:
    answer = read_events(WHOLE)
    assert (answer.error, answer.output_ids, answer.text) == (None, [65, 66, 67], "ABC")
    assert (answer.first_token, answer.first_count, answer.latency) == (0.5, 1, 0.9)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.finish_reason) == (7, 4, "length")
    assert time_per_token(answer) == pytest.approx(0.2)


def test_several_tokens_in_one_event_are_several_tokens() -> None:
    # Speculation: 1, then 3 at once, then 2.
    sent = [
        (1.0, event([1])),
        (1.3, event([1, 2, 3, 4])),
        (1.5, event([1, 2, 3, 4, 5, 6], finish=LENGTH, spec_accept_length=3.0)),
    ]
    answer = read_events(sent)
    assert time_per_token(answer) == pytest.approx(0.1)
    assert answer.spec == {"spec_accept_length": 3.0}
    # The tokens of the first event were there when the clock of the rest started.
    assert time_per_token(read_events(sent[1:])) == pytest.approx(0.2 / 2)


def test_events_that_hold_what_is_new_only() -> None:
    sent = [
        (0.1, event([1, 2], count=2)),
        (0.2, event([3], count=3)),
        (0.3, event([4, 5], count=5)),
        (0.4, event([], count=5, finish=LENGTH)),
    ]
    answer = read_events(sent)
    assert (answer.output_ids, answer.text) == ([1, 2, 3, 4, 5], "\x01\x02\x03\x04\x05")
    # The last event brought no token.
    assert (answer.first_count, answer.latency) == (2, 0.3)


def test_one_piece_has_no_time_per_token() -> None:
    answer = read_events([(0.9, event([1, 2, 3], finish=LENGTH))])
    assert time_per_token(answer) is None
    assert answer.first_token == 0.9
    # Held back on the way: several events, all at the same time.
    assert time_per_token(read_events([(0.9, data) for _, data in WHOLE])) is None


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (WHOLE[:2], "the stream ended before the answer did"),
        ([], "the stream ended before the answer did"),
        ([(0.1, '{"error": {"message": "out of memory", "code": 500}}')], "out of memory"),
        ([*WHOLE[:1], (0.2, "{half")], "an event has an unknown shape"),
        ([(0.1, "[1, 2]")], "an event has an unknown shape"),
        ([(0.1, '{"text": "A"}')], "an event has an unknown shape"),
        ([(0.1, event([1, 2], count=3, finish=LENGTH))], "the events hold 2 of 3 tokens"),
        ([(0.1, event([1], finish={"type": "abort", "message": "gone"}))], "gone"),
    ],
)
def test_a_broken_stream_is_a_failed_answer(sent: list[tuple[float, str]], error: str) -> None:
    answer = read_events(sent)
    assert answer.failed
    assert (answer.error or "").startswith(error)


class Chunks(httpx.SyncByteStream):
    """Chunks that come at given seconds of a fake clock; an exception among them is raised."""

    def __init__(self, clock: list[float], chunks: Sequence[tuple[float, bytes | Exception]]) -> None:
        self._clock, self._chunks = clock, chunks

    def __iter__(self) -> Iterator[bytes]:
        for seconds, chunk in self._chunks:
            self._clock[0] = seconds
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(stream, "clock", lambda: now[0])
    return now


def ask(
    clock: list[float],
    chunks: Sequence[tuple[float, bytes | Exception]],
    timeout: float | None = None,
    kind: str = "text/event-stream",
    bodies: list[dict[str, Any]] | None = None,
) -> Answer:
    def handler(request: httpx.Request) -> httpx.Response:
        if bodies is not None:
            bodies.append(json.loads(request.content))
        return httpx.Response(200, headers={"content-type": kind}, stream=Chunks(clock, chunks))

    transport = Discreet(httpx.MockTransport(handler), ("secret-of-ours",))
    with httpx.Client(transport=transport, base_url=URL) as client:
        (answer,) = generate_all(client, [Request([5, 6], "n", 3, ignore_eos=True, stream=True)], timeout)
    return answer


def line(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def test_events_split_and_joined_anywhere_on_the_way(clock: list[float]) -> None:
    first, second, third = (line(data) for _, data in WHOLE[:3])
    chunks = [(0.2, first[:9]), (0.5, first[9:] + second), (0.7, third + b"data: [DO"), (0.8, b"NE]\n\n")]
    answer = ask(clock, chunks)
    assert (answer.first_token, answer.latency, answer.output_ids) == (0.5, 0.7, [65, 66, 67])


def test_a_text_with_other_line_ends_in_it_is_one_line(clock: list[float]) -> None:
    text = "one\u2028two\x85three"
    answer = ask(clock, [(0.5, line(event([1, 2, 3], finish=LENGTH, text=text)))])
    assert (answer.error, answer.text) == (None, text)


def test_a_secret_in_a_stream_is_hidden_and_the_stream_stays_one(clock: list[float]) -> None:
    sent = line(event([65])), line(event([65, 66, 67], finish=LENGTH, text="secret-of-ours"))
    answer = ask(clock, [(0.5, sent[0]), (0.6, sent[1][:70]), (0.8, sent[1][70:])])
    assert (answer.text, answer.first_token, answer.latency) == ("(hidden)", 0.5, 0.8)


def test_what_is_asked_for(clock: list[float]) -> None:
    bodies: list[dict[str, Any]] = []
    ask(clock, [], bodies=bodies)
    sampling = {"temperature": 0.0, "max_new_tokens": 3, "ignore_eos": True}
    assert bodies == [{"input_ids": [5, 6], "extra_key": "n", "sampling_params": sampling, "stream": True}]


@pytest.mark.parametrize(
    ("chunks", "error", "tokens"),
    [
        (
            [(0.1, line(event([1]))), (9.0, httpx.ReadTimeout("silence"))],
            "the stream broke: ReadTimeout",
            [1],
        ),
        ([(0.1, line(event([1]))), (0.2, httpx.ReadError("reset"))], "the stream broke: ReadError", [1]),
        # Comments keep a connection awake; they do not make an answer.
        ([(0.1, line(event([1]))), *[(n * 1.0, b": wait\n") for n in range(1, 9)]], "the stream broke", [1]),
    ],
)
def test_a_stalled_stream_is_a_failed_answer(
    clock: list[float], chunks: Any, error: str, tokens: list[int]
) -> None:
    answer = ask(clock, chunks, timeout=5.0)
    assert answer.failed
    assert (answer.error or "").startswith(error)
    assert answer.output_ids == tokens
    assert clock[0] <= 9.0


def test_a_server_that_does_not_stream(clock: list[float]) -> None:
    answer = ask(clock, [(0.5, event([1, 2, 3], finish=LENGTH).encode())], kind="application/json")
    assert (answer.error, answer.first_token) == ("the server did not stream its answer", None)


def test_no_answer_and_a_refusal() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"error": {"message": "too long"}})

    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    request = Request([1], "n", stream=True)
    found = []
    for handler in (refuse, lost):
        with httpx.Client(transport=httpx.MockTransport(handler), base_url=URL) as client:
            found += generate_all(client, [request])
    assert [(one.status, one.error) for one in found] == [
        (400, "HTTP 400: too long"),
        (0, "ConnectError: refused"),
    ]


def test_several_are_in_flight_at_once() -> None:
    together = threading.Barrier(4, timeout=10)

    def handler(request: httpx.Request) -> httpx.Response:
        together.wait()  # broken, and an error, unless four are here at the same time
        first = json.loads(request.content)["input_ids"][0]
        body = line(event([first, 2, 3], finish=LENGTH))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    requests = [Request([number], f"n{number}", 3, stream=True) for number in range(4)]
    with httpx.Client(transport=httpx.MockTransport(handler), base_url=URL) as client:
        found = generate_all(client, requests)
    assert [one.output_ids[0] for one in found] == [0, 1, 2, 3]


@pytest.mark.parametrize("release", RECORDED)
def test_what_sglang_streams(release: str) -> None:
    lines = [line.removeprefix("data: ") for line in RECORDED[release]]
    answer = read_events((0.5 + 0.1 * n, line) for n, line in enumerate(lines))
    assert answer.error is None
    assert (len(answer.output_ids), answer.prompt_tokens, answer.finish_reason) == (3, 100, "length")
    assert (answer.first_token, answer.first_count, answer.latency) == (0.5, 1, pytest.approx(0.7))
    assert len(answer.logprobs) == 3


def test_tokens_per_second_of_a_wave() -> None:
    one = Answer(status=200, latency=2.0, output_ids=[1] * 4)
    other = Answer(status=200, latency=4.0, output_ids=[1] * 8)
    assert tokens_per_second([one, other]) == 3.0
