"""Prompt logprobs beside a new token, in one request."""

import json
from typing import Any

import httpx

from fidelity.engines.request import Request
from fidelity.engines.sglang import generate
from fidelity.observations import Answer

IDS = [11, 12, 13, 14]


def ask(new_tokens: int, first: float | None = -0.3, ids: list[int] = IDS) -> tuple[Answer, dict[str, Any]]:
    """The answer to a request that scores from position 2, and its body."""
    seen: dict[str, Any] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        seen.update(json.loads(request.content))
        start = seen["logprob_start_len"]
        quoted = [[None if n == start else -1.0 - n, ids[n], None] for n in range(start, len(ids))]
        meta = {
            "prompt_tokens": 4,
            "cached_tokens": 0,
            "finish_reason": {"type": "length", "length": new_tokens},
            "input_token_logprobs": quoted,
            "input_top_logprobs": [None, *[[[-1.0, 99, None]] for _ in quoted[1:]]],
            "output_token_logprobs": [[first, 7, None]],
            "output_top_logprobs": [[[first, 7, None], [-2.0, 8, None]]],
        }
        return httpx.Response(200, json={"text": "a", "output_ids": [7], "meta_info": meta})

    with httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake") as client:
        return generate(client, Request(IDS, "n", new_tokens, score_from=2)), seen


def test_both_are_kept() -> None:
    answer, body = ask(1)
    assert body["logprob_start_len"] == 1
    assert answer.scored == [-3.0, -4.0]
    assert (answer.output_ids, answer.logprobs, answer.top) == ([7], [-0.3], [[(7, -0.3), (8, -2.0)]])
    # The placeholder at the first quoted position is none of those wanted.
    assert (answer.faces, answer.mismatched, answer.scored_top) == ({}, False, [])


def test_without_new_tokens_nothing_is_generated() -> None:
    answer, body = ask(0)
    assert body["logprob_start_len"] == 0
    assert answer.scored == [-3.0, -4.0]
    assert (answer.output_ids, answer.logprobs, answer.top) == ([], [], [])
    assert answer.scored_top == [[(99, -1.0)], [(99, -1.0)]]


def test_a_nan_of_the_new_token_counts_only_where_one_was_asked_for() -> None:
    assert ask(1, first=None)[0].faces == {"null": 2}
    assert ask(0, first=None)[0].faces == {}


def test_logprobs_of_other_tokens_are_no_scores() -> None:
    assert ask(1, ids=[11, 12, 13, 99])[0].mismatched
