"""The client of sglang's `/generate` against recorded answers of real servers and constructed odd ones."""

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.compare import broken_rules, compare_first_token
from fidelity.engines import sglang
from fidelity.engines.request import Request
from fidelity.engines.sglang import read_response
from fidelity.observations import Answer

Read = Callable[[str], Answer]


def client(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake", timeout=30)


def body(**meta: Any) -> dict[str, Any]:
    """A constructed answer of one token."""
    given: dict[str, Any] = {
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 193,
        "cached_tokens": 192,
        "output_token_logprobs": [[-0.5, 7, None]],
        "output_top_logprobs": [[[-0.5, 7, None], [-1.5, 8, None]]],
    }
    return {"text": "x", "output_ids": [7], "meta_info": {**given, **meta}}


def test_recorded_cold_and_hit(read: Read) -> None:
    cold, hit = read("cold"), read("hit")
    assert (cold.prompt_tokens, cold.cached_tokens) == (193, 0)
    assert (hit.prompt_tokens, hit.cached_tokens) == (193, 192)
    assert cold.text == "<491>"
    assert cold.output_ids == [491]
    assert cold.finish_reason == "length"
    assert cold.logprobs == [-1.6349892616271973]
    assert len(cold.top) == 1
    assert cold.top[0][:2] == [(491, -1.6349892616271973), (473, -1.8849892616271973)]
    assert len(cold.top[0]) == 20
    assert (cold.faces, cold.values, cold.error, cold.raw) == ({}, 21, None, None)
    assert compare_first_token(cold, hit).kind == "same"


def test_recorded_nan_is_null_everywhere(read: Read) -> None:
    hit = read("nan hit")
    assert hit.output_ids == [0]
    assert hit.text == "!"
    assert hit.faces == {"null": 21}
    assert hit.values == 21
    assert math.isnan(hit.logprobs[0])
    assert all(math.isnan(value) for _, value in hit.top[0])
    assert json.loads(hit.raw or "")["output_ids"] == [0]
    assert broken_rules(hit) == ("NaN: 21 null",)
    assert compare_first_token(read("cold"), hit).kind == "broken"


def test_recorded_stale_values_are_a_confident_wrong_token(read: Read) -> None:
    hit = read("stale hit")
    assert broken_rules(hit) == ()
    agreement = compare_first_token(read("cold"), hit)
    assert agreement.kind == "hard flip"
    assert agreement.corrupt


def test_recorded_sanitized_nan_is_a_flat_row(read: Read) -> None:
    hit = read("sanitized hit")
    assert hit.faces == {}
    assert hit.logprobs == [pytest.approx(-math.log(512))]
    assert broken_rules(hit)[0] == "flat row"


def test_recorded_server_without_a_tokenizer_has_no_text(read: Read) -> None:
    hit = read("nan hit without a tokenizer")
    assert hit.text is None
    assert hit.faces["null"] == 21
    assert hit.error is None


def test_recorded_answer_without_logprobs_or_tokens(read: Read) -> None:
    bare = read("no logprobs")
    assert (bare.output_ids, bare.logprobs, bare.top, bare.values) == ([491], [], [], 0)
    assert compare_first_token(bare, bare).kind == "unreadable"
    assert compare_first_token(read("cold"), bare).kind == "unreadable"
    empty = read("no new token")
    assert (empty.output_ids, empty.logprobs, empty.text) == ([], [], "")
    assert compare_first_token(read("cold"), empty).kind == "unreadable"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "too long",
            "HTTP 400: The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        ),
        ("empty", "HTTP 400: input_ids cannot be empty."),
        (
            "chat of a server without a tokenizer",
            "HTTP 500: Internal server error: 'NoneType' object has no attribute 'apply_chat_template'",
        ),
    ],
)
def test_recorded_refusals(name: str, error: str, read: Read) -> None:
    answer = read(name)
    assert answer.error == error
    assert answer.faces == {}
    assert answer.raw


@pytest.mark.parametrize(
    ("text", "faces"),
    [
        (json.dumps(body(output_token_logprobs=[[math.nan, 7, None]])), {"nan": 1}),
        (json.dumps(body(output_top_logprobs=[[[-math.inf, 7, None], [-0.1, 8, None]]])), {"-inf": 1}),
        (json.dumps(body(output_token_logprobs=[[-3.4e38, 7, None]])), {"huge": 1}),
        (json.dumps(body(output_token_logprobs=[[-9999.0, 7, None]])), {"-9999": 1}),
        (json.dumps(body(output_token_ids_logprobs=[[[None, 9, None]]])), {"null": 1}),
        (json.dumps(body(finish_reason={"type": "stop", "matched": "NaN happened"})), {"finish nan": 1}),
    ],
)
def test_constructed_faces_keep_the_raw_body(text: str, faces: dict[str, int]) -> None:
    (answer,) = read_response(200, text, 0.1)
    assert answer.faces == faces
    assert answer.raw == text


def test_constructed_http_500_of_a_nan_is_data_and_not_a_failed_request() -> None:
    text = json.dumps({"error": {"message": "Out of range float values are not JSON compliant"}})
    (answer,) = read_response(500, text, 0.1)
    assert answer.faces == {"http nan": 1}
    assert answer.values == 1
    assert broken_rules(answer) == ("NaN: 1 http nan",)


def test_constructed_abort_is_an_error() -> None:
    reason = {"type": "abort", "message": "out of memory", "status_code": 503}
    (answer,) = read_response(200, json.dumps(body(finish_reason=reason)), 0.1)
    assert (answer.error, answer.finish_reason) == ("out of memory", "abort")
    assert answer.raw


@pytest.mark.parametrize(
    "text", ["", "<html>busy</html>", "{", '"text"', "3", "[3]", "{}", '{"meta_info": 3}']
)
def test_constructed_bodies_that_are_no_answer(text: str) -> None:
    (answer,) = read_response(200, text, 0.1)
    assert answer.error
    assert answer.raw == text


TEXT = st.text("a1é", max_size=3)
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=6,
)
META = (
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "dp_rank",
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
)


@given(st.sampled_from([*META, "output_ids", "text"]), anything)
@settings(max_examples=120, deadline=None)
def test_no_answer_however_odd_raises(key: str, value: Any) -> None:
    given = body(**{key: value}) if key in META else {**body(), key: value}
    (answer,) = read_response(200, json.dumps(given), 0.1)
    assert answer.prompt_tokens is None or type(answer.prompt_tokens) is int
    assert answer.cached_tokens is None or type(answer.cached_tokens) is int
    assert all(type(lp) is float for lp in answer.logprobs)
    assert all(type(token) is int for token in answer.output_ids)


def test_the_request_that_is_sent() -> None:
    sent: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=body())

    request = Request([1, 2, 3], "run/arm/a", 1, ask=[7, 8], dp_rank=0)
    assert sglang.generate(client(handler), request).output_ids == [7]
    assert sent == [
        {
            "input_ids": [1, 2, 3],
            "extra_key": "run/arm/a",
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": -1,  # 0 would leave nothing of the cached prefix to use
            "top_logprobs_num": 20,
            "token_ids_logprob": [7, 8],
            "routed_dp_rank": 0,
        }
    ]


def test_a_batch_is_one_request_with_a_namespace_each() -> None:
    sent: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=[body(), body()])

    answers = sglang.generate_batch(client(handler), [Request([1, 2], "a"), Request([3], "b")])
    assert len(answers) == 2
    assert len(sent) == 1
    assert sent[0]["input_ids"] == [[1, 2], [3]]
    assert sent[0]["extra_key"] == ["a", "b"]


def test_a_lost_connection_is_an_answer_with_status_0() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("closed by peer")

    answer = sglang.generate(client(handler), Request([1], "a"))
    assert (answer.status, answer.error) == (0, "ReadError: closed by peer")
    assert [one.status for one in sglang.generate_batch(client(handler), [Request([1], "a")] * 2)] == [0, 0]


@pytest.mark.parametrize(("given", "used"), [(5.0, 5.0), (90.0, 30.0), (None, 30.0)])
def test_the_shorter_timeout_holds(given: float | None, used: float) -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json=body())

    sglang.generate(client(handler), Request([1], "a"), timeout=given)
    assert seen == [used]


def test_logprobs_of_another_token_are_told() -> None:
    (matched,) = read_response(200, json.dumps(body()), 0.1)
    assert not matched.mismatched
    (other,) = read_response(200, json.dumps(body(output_token_logprobs=[[-0.5, 8, None]])), 0.1)
    assert other.mismatched
    assert other.raw is not None
    assert other.error is None


@pytest.mark.parametrize(
    ("told", "mismatched"),
    [
        ([5, 6, 7], False),
        ([5, 0, 7], False),  # sglang writes 0 for the vocabulary's last id
        ([5, 6, 8], True),
        ([0, 0, 0], True),
        ([6, 7], True),
        ([], True),
    ],
)
def test_scored_logprobs_must_be_of_the_tokens_that_were_sent(told: list[int], mismatched: bool) -> None:
    entries = [[None, 4, None], *([-0.5, token, None] for token in told)]
    top = [None, *([[-0.4, token, None]] for token in told)]
    given = body(input_token_logprobs=entries, input_top_logprobs=top)
    (answer,) = read_response(200, json.dumps(given), 0.1, scored=[5, 6, 7])
    assert answer.mismatched is mismatched
    if told == [5, 6, 7]:
        assert answer.scored == [-0.5] * 3
        assert answer.scored_top == [[(5, -0.4)], [(6, -0.4)], [(7, -0.4)]]
        assert answer.faces == {}, "the null of the first prompt token is nobody's"
