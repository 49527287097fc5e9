"""The public chat API: real servers' answers as recorded, what is sent, and what is learnt before it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.compare import broken_rules
from fidelity.engines import openai
from fidelity.engines.openai_answer import read_response, token_id
from fidelity.engines.openai_habits import SENDS, habits_of, learn
from fidelity.engines.registry import meet
from fidelity.engines.request import Request
from fidelity.engines.salt import DIGITS, salt, salted
from fidelity.errors import NotWhatWasAskedError, UnreachableError
from fidelity.observations import Answer
from fidelity.prompts.counted import Counted

from ..fake_openai import FakeOpenAI

SAMPLES = Path(__file__).parent / "samples"
HELLO = Counted([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], 12)


def recorded(name: str, status: int = 200) -> Answer:
    return read_response(status, (SAMPLES / f"{name}.json").read_text(encoding="utf-8"), 0.1)


def entry(token: str, logprob: float, **more: Any) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": logprob, **more}


def said(text: str, *entries: dict[str, Any], **message: Any) -> Answer:
    choice = {"message": {"content": text, **message}, "logprobs": {"content": list(entries)}}
    return read_response(200, json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9}}), 0.1)


def test_llama_cpp_and_vllm_and_mlx_name_a_token_alike() -> None:
    answers = [recorded(name) for name in ("llamacpp_chat_cold", "vllm_chat_cached", "mlx_chat_cached")]
    first = token_id(b"The")
    assert [answer.output_ids[0] for answer in answers] == [first] * 3
    assert [answer.top[0][0][0] for answer in answers] == [first] * 3
    assert first == 614688665  # the same in every run and release
    assert [answer.prompt_tokens for answer in answers] == [191] * 3
    assert [answer.cached_tokens for answer in answers] == [0, 128, 190]


def test_mlx_tells_another_token_than_it_emits_and_lists_out_of_order() -> None:
    for name in ("mlx_chat_cold", "mlx_chat_cached"):
        answer = recorded(name)
        assert answer.output_ids[1] == token_id("Ġcapital".encode())
        assert answer.logprobs == [-1.7868423461914062, -0.8303623199462891]
        assert not answer.mismatched
        assert broken_rules(answer) == ()
        assert answer.top[1][0][1] < answer.top[1][1][1]  # in the server's order, for the report to say so


def test_transformers_serve_tells_texts_alone() -> None:
    answer = recorded("transformers_serve_chat")
    assert (answer.text, answer.prompt_tokens, answer.cached_tokens) == ("The capital of Japan", 37, None)
    assert (answer.output_ids, answer.logprobs, answer.top, answer.failed) == ([], [], [], False)


def test_nan_is_a_face_as_null_and_as_a_client_error() -> None:
    null = recorded("llamacpp_chat_nan_one_row")
    assert (null.faces, null.values, null.mismatched) == ({"null": 6}, 6, False)
    assert broken_rules(null)[0].startswith("NaN")
    refused = recorded("vllm_nan_logits_http400", 400)
    assert refused.faces == {"http nan": 1}
    assert not refused.failed


@pytest.mark.parametrize(
    ("text", "token", "rows", "mismatched"),
    [
        ("Paris", entry("Paris", -0.1), [("Paris", -0.1), ("Rome", -3.0)], False),
        ("Paris", entry("Rome", -0.1), [("Rome", -0.1), ("Oslo", -3.0)], True),
        ("Paris", entry("Rome", -3.0), [("Rome", -3.0), ("Paris", -0.1)], False),
        ("Paris", entry(" Paris", -0.1), [(" Paris", -0.1), ("Rome", -3.0)], False),
        ("Paris", entry("▁Paris", -0.1), [("▁Paris", -0.1), ("Rome", -3.0)], False),
        ("", entry("<|im_end|>", -0.1), [("<|im_end|>", -0.1), ("Rome", -3.0)], False),
        ("x", entry("\n", -0.1), [("\n", -0.1), ("Rome", -3.0)], False),
    ],
)
def test_the_token_is_held_against_the_text(
    text: str, token: dict[str, Any], rows: list[tuple[str, float]], mismatched: bool
) -> None:
    answer = said(text, {**token, "top_logprobs": [entry(*row) for row in rows]})
    assert answer.mismatched is mismatched
    if not mismatched:
        assert answer.logprobs == [-0.1]
        assert broken_rules(answer) == ()


def test_part_of_a_character_ends_what_the_text_can_show() -> None:
    row = [{"token": "�", "bytes": [0xE6], "logprob": -0.1}, entry("a", -3.0)]
    answer = said("�", {**row[0], "top_logprobs": row})
    assert not answer.mismatched
    assert answer.output_ids == [token_id(b"\xe6")]


def test_two_tokens_of_the_same_bytes_are_one() -> None:
    row = [entry("Paris", math.log(0.5)), entry("Paris", math.log(0.25)), entry("Rome", math.log(0.1))]
    answer = said("Paris", {**row[0], "top_logprobs": row})
    assert [math.exp(value) for _, value in answer.top[0]] == pytest.approx([0.75, 0.1])
    assert math.exp(answer.logprobs[0]) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "body", ["[]", '{"choices": []}', '{"choices": [{"message": 3}]}', '{"object": "x"}']
)
def test_an_unknown_shape_is_a_failed_answer(body: str) -> None:
    answer = read_response(200, body, 0.1)
    assert answer.failed
    assert answer.raw == body


def test_a_salt_is_equally_long_in_every_namespace_and_first_in_the_prompt() -> None:
    salts = {salt(f"run/{n}") for n in range(500)}
    assert len(salts) == 500
    assert {len(one.split()) for one in salts} == {DIGITS}
    assert all(word.isdigit() and len(word) == 1 for one in salts for word in one.split())
    system, user = salted(HELLO.messages, "run/1")
    assert system == {"role": "system", "content": f"{salt('run/1')}\nBe brief."}
    assert user == HELLO.messages[1]
    assert HELLO.messages[0]["content"] == "Be brief."


def test_nothing_is_sent_that_the_api_does_not_promise() -> None:
    path, body = openai.call([Request(HELLO, "n", max_new_tokens=3, top_k=200, ask=(1, 2))], single=True)
    assert path == "/v1/chat/completions"
    promised = {"model", "messages", "temperature", "max_tokens", "logprobs", "top_logprobs"}
    assert set(body) == promised
    assert (body["max_tokens"], body["top_logprobs"], body["temperature"]) == (3, 20, 0.0)
    with pytest.raises(TypeError, match="not token ids"):
        openai.call([Request([1, 2], "n")], single=True)


Learnt = Callable[..., tuple[FakeOpenAI, httpx.Client, Any]]


@pytest.fixture
def learnt() -> Learnt:
    def start(**habits: Any) -> tuple[FakeOpenAI, httpx.Client, Any]:
        fake = FakeOpenAI(**habits)
        client = fake.client()
        facts = learn(client, openai.facts(client), False, "run", lambda count: None)
        return fake, client, facts

    return start


def test_what_a_server_takes_is_learnt_from_four_sends(learnt: Learnt) -> None:
    fake, client, facts = learnt()
    assert len(fake.bodies) == SENDS
    assert set(facts.lacks) == set(openai.LACKS)
    assert facts.salt == 3 + 2 * DIGITS
    assert habits_of(client).top == 20
    assert any("two cold sends are not of the same tokens" in note for note in facts.notes)
    before = len(fake.bodies)
    openai.generate(client, Request(HELLO, "n"))
    assert fake.bodies[before]["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("habits", "lacks", "note", "sends"),
    [
        ({"most": 11}, None, "at most 11 top logprobs", SENDS + 2),
        ({"most": 0}, "logprobs", "texts are compared, and distributions are not", SENDS),
        ({"tells": "never"}, "cached_tokens", "--enable-prompt-tokens-details", SENDS),
        ({"template": False}, None, "takes no chat_template_kwargs", SENDS + 1),
        ({"names": None}, "models", "", SENDS),
    ],
)
def test_what_it_does_not_give_is_said(
    habits: dict[str, Any], lacks: str | None, note: str, sends: int, learnt: Learnt
) -> None:
    fake, client, facts = learnt(**habits)
    assert set(facts.lacks) == {*openai.LACKS, *([lacks] if lacks else [])}
    assert note in "; ".join(facts.notes)
    assert len(fake.bodies) == sends
    before = len(fake.bodies)
    assert openai.generate(client, Request(HELLO, "n")).status == 200  # what it refuses is not sent again
    assert len(fake.bodies) == before + 1


def test_silence_about_a_miss_is_a_miss_only_where_hits_are_told(learnt: Learnt) -> None:
    for tells, found in (("hits", 0), ("always", 0), ("never", None)):
        _, client, _ = learnt(tells=tells, step=16)
        assert openai.generate(client, Request(HELLO, "n")).cached_tokens == found


def test_the_requests_that_learn_are_counted(learnt: Learnt) -> None:
    fake, taken = FakeOpenAI(), []
    client = fake.client()
    learn(client, openai.facts(client), False, "run", taken.append)
    openai.tokenizer(client, lambda path, body: {}, False).encode(HELLO.messages)
    assert sum(taken) == len(fake.bodies) == SENDS + 1


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (httpx.Response(401), UnreachableError, r"refuses the request \(401\)"),
        (
            httpx.Response(404, json={"error": {"message": "model 'default' not found"}}),
            NotWhatWasAskedError,
            "model",
        ),
        (httpx.Response(200, text="<html>login</html>"), NotWhatWasAskedError, "not JSON"),
        (
            httpx.Response(400, json={"error": "no"}),
            NotWhatWasAskedError,
            "refuses every request: HTTP 400: no",
        ),
        (httpx.Response(429, json={"error": "slow down"}), UnreachableError, "HTTP 429: slow down"),
        (
            httpx.Response(200, json={"choices": [{"message": {"content": "x"}}]}),
            NotWhatWasAskedError,
            "usage",
        ),
    ],
)
def test_a_server_that_cannot_be_measured(answer: httpx.Response, error: type[Exception], says: str) -> None:
    fake = FakeOpenAI(sees=lambda request: answer if request.method == "POST" else None)
    client = fake.client()
    with pytest.raises(error, match=says):
        learn(client, openai.facts(client), False, "run", lambda count: None)


def test_it_is_recognised_last_and_the_guess_is_named() -> None:
    client = FakeOpenAI(names=("one", "two")).client()
    facts = meet(client)
    assert (facts.engine, facts.model, facts.names) == ("openai", "one", ["one", "two"])
    assert facts.notes[0] == "taken for openai, by its /v1/models; --engine names another"
    assert "2 models are served" in "; ".join(facts.notes)
    assert meet(client, "openai").notes == facts.notes[1:]
    named = learn(client, replace(facts, model="two"), False, "run", lambda count: None)
    assert named.model == habits_of(client).model == "two"


def test_a_page_that_lists_no_models_is_not_recognised_but_can_be_named() -> None:
    client = FakeOpenAI(names=None).client()
    with pytest.raises(NotWhatWasAskedError, match="answers, but as none of"):
        meet(client)
    assert meet(client, "openai").model == "default"
