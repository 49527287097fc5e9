"""What a replay says of the answers that come now."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fidelity.engines.request import Request
from fidelity.errors import UnreachableError
from fidelity.observations import Answer, Observation
from fidelity.reproduce.case import Case
from fidelity.reproduce.replay import GONE, NOT_TAKEN, REPRODUCED, Replay, again

from .conftest import NAN


@pytest.fixture
def case(cell: Any, pair: Any, chosen: Any) -> Case:
    return chosen(cell(), pair("a/b", **NAN)).case


def played(case: Case, *answers: Answer) -> tuple[Replay, list[Request]]:
    sent: list[Request] = []

    def send(requests: tuple[Request, ...]) -> list[Answer]:
        sent.extend(requests)
        return [answers[len(sent) - 1]]

    return again(case, send, "http://server"), sent


def test_the_same_answers_are_reproduced_in_a_fresh_namespace(case: Case) -> None:
    cold, hit = (send.answer for send in case.sends)
    told, sent = played(case, cold, hit)
    assert (told.state, told.why) == (REPRODUCED, "NaN: 1 null")
    (space,) = {one.namespace for one in sent}
    assert space.startswith("repro-")
    assert space.endswith("/a")
    assert {one.namespace for one in played(case, cold, hit)[1]} != {space}


def test_right_answers_on_the_same_path_are_not(case: Case) -> None:
    cold = case.sends[0].answer
    told, _ = played(case, cold, replace(cold, cached_tokens=192))
    assert told.state == GONE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cached_tokens": 128}, "hit: cached_tokens 128 instead of 192"),
        ({"cached_tokens": None}, "hit: cached_tokens None instead of 192"),
        ({"status": 400, "error": "HTTP 400: no"}, "hit: the request failed: HTTP 400: no"),
    ],
)
def test_another_path_says_nothing(case: Case, change: dict[str, Any], why: str) -> None:
    cold = case.sends[0].answer
    told, _ = played(case, cold, replace(cold, **{"cached_tokens": 192, **change}))
    assert (told.state, told.why) == (NOT_TAKEN, why)


@pytest.mark.parametrize(("status", "said"), [(0, "no answer from"), (401, "refuses the request")])
def test_a_server_that_does_not_answer_ends_it(case: Case, status: int, said: str) -> None:
    lost = Answer(status=status, latency=0.0, error="ConnectError")
    with pytest.raises(UnreachableError, match=said):
        played(case, lost)


def test_the_clean_prefill_is_of_what_was_answered_now(
    cell: Any, observation: Callable[..., Observation], chosen: Any
) -> None:
    shared = {"probe": "decode", "cell": "T=0", "group": "g", "prompt": "p", "tail": None, "cached_tokens": 0}
    decode = observation(
        **shared, role="decode", length=2, input_ids=[1, 2], output_ids=[0, 0], faces={"null": 2}, values=2
    )
    clean = observation(**shared, role="rescore", length=4, order=1, output_ids=[], scored=[-9.0, -9.0])
    now = replace(decode.answer, output_ids=[5], faces={}, top=[[(5, -0.1)]], logprobs=[-0.1])
    scored = replace(clean.answer, scored=[-0.1], scored_top=[[(5, -0.1)]])
    told, sent = played(chosen(cell("T=0", "decode"), [decode, clean]).case, now, scored)
    assert list(sent[1].input_ids) == [1, 2, 5]
    assert (told.state, told.sends[1].length) == (GONE, 3)
