"""Cells that only a reference shows: the cold send or the draft, with the reference's recorded answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fidelity.observations import Answer, Observation
from fidelity.probes.reference import ACCEPTANCE
from fidelity.reproduce.failing import first_shown
from fidelity.reproduce.replay import GONE, REPRODUCED, again
from fidelity.reproduce.shell import script
from fidelity.verdicts import CellVerdict

Cells = Callable[..., CellVerdict]
Pairs = Callable[..., list[Observation]]
RIGHT = [(5, -0.1), (6, -3.0), (7, -4.0)]
MOVED = [[(5, -0.3), (6, -2.0), (7, -2.5)]]
FLIPPED = [[(6, -0.1), (5, -3.0), (7, -4.0)]]


def trusted(cold: Observation, **answer: Any) -> Observation:
    told = replace(cold.answer, top=[RIGHT], **answer)
    return replace(cold, arm="reference", probe="reference", order=cold.order + 50, answer=told)


@pytest.fixture
def moved(pair: Pairs) -> list[Observation]:
    """Cold answers of two prompts, one of them a little off the reference's and one more."""
    (one, _), (other, _) = pair("a", 0), pair("b", 10)
    slight = replace(one, answer=replace(one.answer, top=[[(5, -0.1), (6, -3.1), (7, -4.0)]]))
    clear = replace(other, answer=replace(other.answer, top=MOVED))
    return [slight, clear, trusted(slight), trusted(clear)]


@pytest.fixture
def failed(cell: Cells) -> CellVerdict:
    return cell("L=193 cold against the reference", "reference", tail=None)


def test_the_cold_send_that_is_furthest_off(
    failed: CellVerdict, moved: list[Observation], chosen: Any
) -> None:
    found = chosen(failed, moved)
    assert [(send.role, send.prompt) for send in found.case.sends] == [("cold", "b")]
    text = script(found, "", "replay it")
    right = 'as the reference: "Paris" (id 5); logprobs 5: -0.1, 6: -3, 7: -4'
    assert f"# expect: cached_tokens 0; {right}" in text
    assert "logprobs 5: -0.3, 6: -2, 7: -2.5" in text
    assert "nat from the reference's" in text
    assert text.count("curl") == 1


def test_a_token_that_the_reference_would_not_say(
    failed: CellVerdict, moved: list[Observation], chosen: Any
) -> None:
    cold = moved[1]
    flipped = replace(cold, answer=replace(cold.answer, output_ids=[6], logprobs=[-0.1], top=FLIPPED))
    found = chosen(failed, [flipped, moved[3]])
    assert "against the reference: hard flip" in found.case.why


def test_it_is_sent_again(failed: CellVerdict, moved: list[Observation], chosen: Any) -> None:
    found = chosen(failed, moved)
    own = found.case.sends[0].answer

    def told(answer: Answer) -> str:
        return again(found.case, lambda _: [answer], "").state

    assert told(own) == REPRODUCED
    assert told(replace(own, top=[RIGHT])) == GONE


def test_a_draft_is_shown_with_what_the_reference_accepts(
    observation: Callable[..., Observation], cell: Cells, chosen: Any
) -> None:
    sent: dict[str, Any] = {"input_ids": [7, 8], "length": 2, "prompt": "open", "max_new_tokens": 3}
    sent["output_ids"] = [1, 2, 3]
    own = observation(
        probe="draft", role="decode", cell="alone", group="open#0", spec={"spec_accept_length": 1.1}, **sent
    )
    told = observation(
        arm="reference", probe="reference", role="drafted", spec={"spec_accept_length": 2.2}, **sent
    )
    found = chosen(cell(ACCEPTANCE, "reference", tail=None), [own, told])
    text = script(found, "", "replay it")
    assert "# expect: as the reference: 2.20 tokens a verification" in text
    assert "1.10 tokens a verification" in text
    assert "keeps 0.50 of the acceptance in the reference" in text


def test_the_reports_show_such_a_cell(failed: CellVerdict) -> None:
    assert first_shown([failed]) == failed
