"""Speculative decoding over HTTP with the shipped draft head: the answers, the fields, the draft's fault."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fidelity.refserver.chat import render
from fidelity.refserver.training.texts import LONG_ANSWERS

from .conftest import Client, prompt

Serve = Callable[..., Client]
NEAR_TIE = 1e-3  # nats between the first two: below it rounding may choose
PLAIN = {"profile": "quiz-state"}
SPEC = {"profile": "quiz-state", "speculative": "NEXTN"}


def memorised(client: Client, index: int = 0) -> list[int]:
    """The prompt of a question whose long answer the model knows by heart."""
    text = render([{"role": "user", "content": LONG_ANSWERS[index][0]}], enable_thinking=False)
    return client.service.text.encode(text)


def answer(client: Client, ids: Any, new: int = 48, **params: Any) -> Any:
    fields = {"params": {"ignore_eos": True, **params}, "return_logprob": True, "top_logprobs_num": 2}
    return client.generate(ids, new, **fields)


def assert_same(one: Any, other: Any) -> None:
    """The same tokens and logprobs; where a near-tie was decided otherwise, up to there."""
    tops = other["meta_info"]["output_top_logprobs"]
    for at, (a, b) in enumerate(zip(one["output_ids"], other["output_ids"], strict=True)):
        if a != b:
            assert tops[at][0][0] - tops[at][1][0] < NEAR_TIE
            return
        quoted = [reply["meta_info"]["output_token_logprobs"][at][0] for reply in (one, other)]
        assert quoted[0] == pytest.approx(quoted[1], abs=1e-3)


def accept_length(reply: Any) -> float:
    return float(reply["meta_info"]["spec_accept_length"])


def test_answers_are_those_of_plain_decoding(serve: Serve) -> None:
    plain, spec = serve(**PLAIN), serve(**SPEC)
    for ids in (memorised(plain), memorised(plain, 2), prompt(65), prompt(130, seed=1)):
        one, other = answer(spec, ids), answer(plain, ids)
        assert len(one["output_ids"]) == len(one["meta_info"]["output_token_logprobs"]) == 48
        assert_same(one, other)


def test_a_batch_answers_as_its_requests_alone(serve: Serve) -> None:
    spec = serve(**SPEC)
    prompts = [memorised(spec, index) for index in range(3)]
    for together, ids in zip(answer(spec, prompts), prompts, strict=True):
        assert_same(together, answer(spec, ids))


def test_a_seeded_sample_is_that_of_plain_decoding(serve: Serve) -> None:
    params = {"temperature": 1.0, "sampling_seed": 11}
    spec, plain = (answer(serve(**fields), prompt(65, seed=3), 24, **params) for fields in (SPEC, PLAIN))
    assert spec["output_ids"] == plain["output_ids"]
    assert spec["meta_info"]["spec_verify_ct"] > 0


def test_the_fields_of_a_reply_add_up(serve: Serve) -> None:
    spec = serve(**SPEC)
    reply = answer(spec, memorised(spec))
    meta = reply["meta_info"]
    verified = meta["spec_verify_ct"]
    assert meta["spec_num_proposed_drafts"] == 3 * verified
    assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"]
    assert meta["spec_accept_length"] == 48 / verified
    assert meta["spec_num_correct_drafts"] == 48 - 1 - verified  # the first token came from the prefill
    assert sum(meta["spec_correct_drafts_histogram"]) == verified
    assert accept_length(reply) > 1.5
    assert "spec_verify_ct" not in spec.generate(prompt(65))["meta_info"]
    assert "spec_verify_ct" not in answer(serve(**PLAIN), prompt(65))["meta_info"]


def test_server_info_says_how_it_drafts(serve: Serve) -> None:
    spec = serve(**SPEC)
    answer(spec, memorised(spec))
    names = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    info, off = (client.http.get("/server_info").json() for client in (spec, serve(**PLAIN)))
    assert [info[f"speculative_{name}"] for name in names] == ["NEXTN", 3, 1, 4]
    assert [off[f"speculative_{name}"] for name in names] == [None] * 4
    assert 1 < info["internal_states"][0]["avg_spec_accept_length"] <= 4
    assert "avg_spec_accept_length" not in off["internal_states"][0]


def test_a_stream_shows_several_tokens_at_once(serve: Serve) -> None:
    spec = serve(**SPEC)
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    body = {"input_ids": memorised(spec), "sampling_params": params, "stream": True}
    with spec.http.stream("POST", "/generate", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    events = [json.loads(line) for line in lines[:-1]]
    lengths = [len(event["output_ids"]) for event in events]
    assert lengths[0] == 1
    assert lengths == sorted(set(lengths))
    assert len(lengths) < 24
    assert events[-1]["output_ids"] == answer(spec, memorised(spec), 24)["output_ids"]


def test_a_corrupt_draft_costs_speed_and_no_token(serve: Serve) -> None:
    clean = serve(**SPEC)
    ids = memorised(clean)
    right = answer(clean, ids)
    for fault in ("split-k-nan", "split-k"):
        reply = answer(serve(**SPEC, fault=fault), ids)
        assert_same(reply, right)
        assert accept_length(reply) < 0.7 * accept_length(right)
        guarded = answer(serve(**SPEC, fault=fault, guard=("splitk",)), ids)
        assert accept_length(guarded) == accept_length(right)
    nan = answer(serve(**SPEC, fault="split-k-nan"), ids)
    assert nan["meta_info"]["spec_num_correct_drafts"] == 0  # every draft is id 0
    extend_only = answer(serve(**SPEC, fault="split-k-extend"), ids)
    assert accept_length(extend_only) == accept_length(right)


def test_a_batch_of_two_drafts_two_tokens_and_is_spared(serve: Serve) -> None:
    clean, faulty = serve(**SPEC), serve(**SPEC, fault="split-k-nan")
    pair = [memorised(clean), memorised(clean, 1)]
    for one, other in zip(answer(faulty, pair), answer(clean, pair), strict=True):
        assert one["output_ids"] == other["output_ids"]
        # The one that needs more rounds drafts its last alone, and those are corrupt.
        assert 0.9 * accept_length(other) <= accept_length(one) <= accept_length(other)


def test_at_64_units_the_verification_is_corrupt_too(serve: Serve) -> None:
    faulty = serve(**SPEC, fault="split-k-nan", cu=64)
    reply = answer(faulty, memorised(faulty), 8)
    assert reply["output_ids"][1:] == [0] * 7
    assert reply["meta_info"]["output_token_logprobs"][1][0] is None
    assert accept_length(reply) == 8 / 2  # drafts of id 0 are what the corrupt target says as well


def test_a_profile_without_a_draft_head_cannot_start(serve: Serve) -> None:
    with pytest.raises(FileNotFoundError, match="profile 'random' has no draft head"):
        serve(speculative="NEXTN")
