"""llama.cpp's API: what is sent, what is read, and what a server says of itself, on recorded answers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.compare import broken_rules
from fidelity.engines import llamacpp
from fidelity.engines.llamacpp_tokenizer import LlamacppTokenizer
from fidelity.engines.registry import meet
from fidelity.engines.request import Request
from fidelity.errors import NotWhatWasAskedError, PromptError
from fidelity.observations import Answer

SAMPLES = Path(__file__).parent / "samples"
IDS = [1, 504, 3575]


@pytest.fixture(scope="session")
def native() -> dict[str, Any]:
    """Bodies of xllamacpp 2026.10.11549, some entries left out."""
    data: dict[str, Any] = json.loads((SAMPLES / "llamacpp_native.json").read_text(encoding="utf-8"))
    return data


def read(body: Any, **request: Any) -> Answer:
    return llamacpp.read_response(200, json.dumps(body), 0.1, [Request(IDS, "n", **request)])[0]


def client(answers: Mapping[str, Any]) -> httpx.Client:
    """A server that has these paths: a text, or JSON."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = answers.get(request.url.path)
        if answer is None:
            return httpx.Response(404, json={"error": {"message": "File Not Found"}})
        return (
            httpx.Response(200, text=answer) if isinstance(answer, str) else httpx.Response(200, json=answer)
        )

    return httpx.Client(base_url="http://server", transport=httpx.MockTransport(handle))


def test_a_fresh_send_leaves_the_cache_alone_and_a_later_one_does_not() -> None:
    path, body = llamacpp.call([Request(IDS, "n", fresh=True)], single=True)
    assert (path, body["prompt"], body["cache_prompt"], body["id_slot"]) == ("/completion", IDS, False, 0)
    assert llamacpp.call([Request(IDS, "n", fresh=False)], single=True)[1]["cache_prompt"] is True


def test_the_servers_own_sampling_cuts_nothing() -> None:
    body = llamacpp.call([Request(IDS, "n", temperature=1.0)], single=True)[1]
    assert (body["samplers"], body["repeat_penalty"], body["temperature"]) == (["temperature"], 1.0, 1.0)


def test_wanted_ids_are_looked_for_among_more_of_the_top(native: dict[str, Any]) -> None:
    assert llamacpp.call([Request(IDS, "n")], single=True)[1]["n_probs"] == 20
    assert llamacpp.call([Request(IDS, "n", ask=(5,))], single=True)[1]["n_probs"] == 200
    assert llamacpp.call([Request(IDS, "n", ask=(5,), top_k=1000)], single=True)[1]["n_probs"] == 2000
    entries = native["hit"]["completion_probabilities"][0]["top_logprobs"]
    last = entries[-1]
    answer = read(native["hit"], top_k=2, ask=(last["id"], 40_000))
    assert [token for token, _ in answer.top[0]] == [entry["id"] for entry in entries[:2]]
    assert answer.asked == [[(last["id"], last["logprob"])]]


def test_a_list_is_one_request_for_any_slots() -> None:
    body = llamacpp.call([Request(IDS, "a"), Request([7], "b")], single=False)[1]
    assert body["prompt"] == [IDS, [7]]
    assert "id_slot" not in body


def test_the_counts_of_a_hit_are_those_of_its_timings(native: dict[str, Any]) -> None:
    hit, cold = read(native["hit"]), read(native["cold"])
    assert (hit.cached_tokens, hit.prompt_tokens, hit.computed) == (63, 64, 1)
    assert (cold.cached_tokens, cold.prompt_tokens) == (0, 64)
    assert hit.output_ids == native["hit"]["tokens"]
    assert hit.logprobs == [native["hit"]["completion_probabilities"][0]["logprob"]]
    assert not hit.faces
    assert hit.raw is None


def test_without_timings_nothing_is_made_up(native: dict[str, Any]) -> None:
    answer = read({key: value for key, value in native["hit"].items() if key != "timings"})
    assert (answer.cached_tokens, answer.prompt_tokens, answer.failed) == (None, None, False)


def test_null_logprobs_are_nan_and_break_the_answer(native: dict[str, Any]) -> None:
    answer = read(native["nan"])
    assert math.isnan(answer.logprobs[0])
    assert answer.faces == {"null": answer.values}
    assert broken_rules(answer)[0].startswith("NaN")


def test_tokens_amid_a_character_have_no_logprobs_and_end_what_is_known(native: dict[str, Any]) -> None:
    answer = read(native["characters"])
    told = [entry["id"] for entry in native["characters"]["completion_probabilities"]]
    assert len(answer.output_ids) > len(told)
    assert answer.output_ids[0] != told[0]
    assert (answer.logprobs, answer.top, answer.mismatched) == ([], [], False)
    assert not broken_rules(answer)


def test_logprobs_of_other_tokens_than_the_answers_say_nothing(native: dict[str, Any]) -> None:
    assert read({**native["cold"], "tokens": [9]}).mismatched
    assert not read(native["cold"]).mismatched


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (
            400,
            '{"error": {"message": "Prompt contains invalid tokens"}}',
            "HTTP 400: Prompt contains",
        ),
        (503, '{"error": {"message": "Loading model"}}', "HTTP 503: Loading model"),
        (200, '{"tokens": [1', "not JSON"),
        (200, '{"completion_probabilities": [{"nothing": 1}]}', "unknown shape"),
    ],
)
def test_an_unusable_reply_is_a_failed_answer_with_its_body(status: int, text: str, says: str) -> None:
    (answer,) = llamacpp.read_response(status, text, 0.1, [Request(IDS, "n")])
    assert answer.failed
    assert answer.raw == text
    assert says in str(answer.error)


def test_a_server_is_known_by_its_slots(native: dict[str, Any]) -> None:
    paths = {"/props": native["props"], "/v1/models": native["models"], "/slots": native["slots"]}
    with client(paths) as server:
        facts = meet(server)
    assert (facts.engine, facts.vocab_size, facts.strategy) == ("llamacpp", 49152, "prompt end")
    assert facts.raw["context_length"] == 4096
    assert any("without --metrics" in note for note in facts.notes)
    assert set(facts.lacks) >= {"scores", "list", "stream", "tools"}


def test_props_of_something_else_are_no_llama_cpp() -> None:
    with client({"/props": {"name": "other"}}) as server:
        assert llamacpp.recognise(server) is None
        with pytest.raises(NotWhatWasAskedError, match="not as a llama"):
            llamacpp.facts(server)


def test_requests_are_pinned_and_that_is_said(native: dict[str, Any]) -> None:
    with client({"/props": {**native["props"], "total_slots": 4}}) as server:
        facts = llamacpp.facts(server)
    assert "every request is pinned to slot 0 of 4" in facts.notes
    assert any("only tail 1 differs" in note for note in facts.notes)
    assert facts.vocab_size is None


def test_the_load_counts_slots_at_work_and_computed_tokens(native: dict[str, Any]) -> None:
    busy = [{**native["slots"][0], "is_processing": True}, native["slots"][0]]
    with client({"/slots": busy, "/metrics": native["metrics"]}) as server:
        load = llamacpp.look(server)
    assert load is not None
    assert (load.busy, load.computed) == (3, 16760)


@pytest.mark.parametrize("slots", [None, [], {}, [{"id": 0}], "text"])
def test_a_load_that_is_not_told_is_none(slots: Any) -> None:
    with client({"/slots": slots}) as server:
        assert llamacpp.look(server) is None


def tokenizer(answers: Mapping[str, Any], sent: list[tuple[str, Any]]) -> LlamacppTokenizer:
    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        sent.append((path, body))
        if path not in answers:
            raise NotWhatWasAskedError(f"{path} answers 404")
        found: dict[str, Any] = answers[path]
        return found

    return LlamacppTokenizer(post, thinking=False)


def test_a_chat_goes_through_the_servers_template_and_tokenizer() -> None:
    sent: list[tuple[str, Any]] = []
    answers = {"/apply-template": {"prompt": "<|user|>hi"}, "/tokenize": {"tokens": IDS}}
    made = tokenizer(answers | {"/detokenize": {"content": "hi"}}, sent)
    assert made.encode([{"role": "user", "content": "hi"}]) == IDS
    assert sent[0][1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent[1] == ("/tokenize", {"content": "<|user|>hi", "add_special": True, "parse_special": True})
    assert made.decode(IDS) == "hi"


@pytest.mark.parametrize("tokens", [None, [], ["a"]])
def test_a_tokenizer_without_ids_is_an_error_with_another_way(tokens: Any) -> None:
    made = tokenizer({"/apply-template": {"prompt": "hi"}, "/tokenize": {"tokens": tokens}}, [])
    with pytest.raises(PromptError, match="no token ids"):
        made.encode([])
    with pytest.raises(PromptError, match="no usable /detokenize"):
        made.decode(IDS)
