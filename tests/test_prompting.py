"""The choice of prompts: by the seed, replaced where the model is unsure, the same for every arm."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.engines import sglang
from fidelity.errors import LengthError, NotWhatWasAskedError, PromptError, UnreachableError
from fidelity.observations import Observation
from fidelity.plan import RunPlan, build
from fidelity.probes.cells import Cell
from fidelity.prompting import PromptSource, open_prompts, order_prompts, shuffled_cells, tokenizer_for
from fidelity.prompts.embedded import EmbeddedTokenizer

CELLS = [Cell(f"L={n}", "suspect" if n == 193 else "control", n, n - 192, "") for n in (193, 194, 225)]


@pytest.fixture
def source(prompt_folder: Path, fake_sglang: Any) -> Callable[..., PromptSource]:
    def make(count: int = 4, seed: int = 0) -> PromptSource:
        plan = build({"prompts": {"folder": str(prompt_folder), "count": count}, "seed": seed})
        return open_prompts(plan, fake_sglang().client(), sglang)

    return make


def names(source: PromptSource) -> list[str]:
    return [entry.id for entry in source.taken]


def screened(observation: Any, probability: float, **given: Any) -> Observation:
    return observation(role="screen", top=[[(5, math.log(probability)), (6, -9.0)]], **given)


def test_the_seed_decides_the_order(source: Callable[..., PromptSource]) -> None:
    def ids(seed: int) -> list[str]:
        return [entry.id for entry in source(seed=seed).order]

    assert ids(0) == ids(0)
    assert ids(0) != ids(1)
    assert len(ids(0)) == len(set(ids(0))) == 80
    first = {name.split("/")[0] for name in ids(0)[:4]}
    assert first == {"echo", "repeat"}  # spread over the families


def test_the_threads_prompt_is_among_the_shipped_ones() -> None:
    assert "capital/france" in {entry.id for entry in order_prompts(RunPlan())[:30]}
    only_one = build({"prompts": {"families": ["gate"], "count": 3}})
    assert {entry.family.family for entry in order_prompts(only_one)} == {"gate"}


def test_an_unknown_prompt_or_family_is_named() -> None:
    with pytest.raises(PromptError, match="no prompt 'capital/frnace'") as caught:
        order_prompts(build({"prompts": {"include": ["capital/frnace"]}}))
    assert caught.value.hint == "did you mean 'capital/france'?"
    with pytest.raises(PromptError, match="no prompt family 'captial'") as caught:
        order_prompts(build({"prompts": {"families": ["captial"]}}))
    assert caught.value.hint == "did you mean 'capital'?"


def test_prompts_are_fitted_exactly_and_once(source: Callable[..., PromptSource]) -> None:
    made = source()
    for entry in made.order[:5]:
        for cell in CELLS:
            fitted = made.fit(entry.id, cell.length)
            assert len(fitted.ids) == cell.length
            assert made.fit(entry.id, cell.length) is fitted


def test_sure_prompts_are_taken(source: Callable[..., PromptSource], observation: Any) -> None:
    made = source(count=4)
    for entry in made.candidates(CELLS):
        assert made.admit(entry, screened(observation, 0.95), sure=0.9)
    assert names(made) == [entry.id for entry in made.order[:4]]
    assert made.replaced == []
    assert list(made.accepted()) == []  # until the first arm has settled it
    made.settled = True
    assert list(made.accepted()) == made.taken


def test_unsure_prompts_are_replaced_from_the_reserve(
    source: Callable[..., PromptSource], observation: Any
) -> None:
    made = source(count=4)
    for number, entry in enumerate(made.candidates(CELLS)):
        made.admit(entry, screened(observation, 0.5 if number in (0, 2) else 0.95), sure=0.9)
    assert names(made) == [made.order[n].id for n in (1, 3, 4, 5)]
    assert made.replaced == [f"{made.order[n].id}: cold top-1 probability 0.50" for n in (0, 2)]
    assert list(made.take_unsure()) == []


def test_an_unsure_model_keeps_its_prompts_after_twice_as_many_were_tried(
    source: Callable[..., PromptSource], observation: Any
) -> None:
    made = source(count=4)
    tried = 0
    for number, entry in enumerate(made.candidates(CELLS)):
        tried += 1
        made.admit(entry, screened(observation, 0.95 if number == 3 else 0.5), sure=0.9)
    assert tried == 8
    taken = list(made.take_unsure())
    assert len(taken) == 3
    assert len(made.taken) == 4
    assert {entry.id for entry in taken} == {made.order[n].id for n in (0, 1, 2)}
    assert len(made.replaced) == 4  # those that are used after all are not called replaced


@pytest.mark.parametrize(
    "given",
    [
        {"top": [], "logprobs": [math.nan], "faces": {"null": 21}},
        {"status": 500, "error": "HTTP 500", "faces": {"http nan": 1}, "top": [], "output_ids": []},
        {"top": [[(n, -6.2383) for n in range(20)]]},
    ],
)
def test_a_broken_answer_is_no_doubt(
    given: dict[str, Any], source: Callable[..., PromptSource], observation: Any
) -> None:
    """Replacing the prompts that are corrupt when cold would hide the fault."""
    made = source()
    assert made.admit(made.order[0], observation(role="screen", **given), sure=0.9)
    assert names(made) == [made.order[0].id]


def test_no_answer_and_no_logprobs(source: Callable[..., PromptSource], observation: Any) -> None:
    made = source()
    assert not made.admit(made.order[0], None, sure=0.9)
    assert made.replaced == [f"{made.order[0].id}: no answer"]
    assert made.unsure == []
    assert not made.admit(made.order[1], observation(role="screen", top=[], logprobs=[]), sure=0.0)
    assert made.unsure == [made.order[1]]


def test_a_failed_screen_is_no_answer(source: Callable[..., PromptSource], observation: Any) -> None:
    """Also when it is read back from an earlier part of the run."""
    made = source()
    failed = observation(role="screen", status=429, error="HTTP 429", top=[], logprobs=[], output_ids=[])
    assert not made.admit(made.order[0], failed, sure=0.9)
    assert made.unsure == []
    assert made.replaced == [f"{made.order[0].id}: no answer"]


def test_lengths_that_no_prompt_reaches(source: Callable[..., PromptSource]) -> None:
    short = [Cell("L=5", "suspect", 5, 1, "")]
    made = source()
    with pytest.raises(LengthError, match="cannot be 5 templated tokens long"):
        list(made.candidates(short))
    assert len(made.replaced) == 80
    with pytest.raises(LengthError):
        source().samples(short)


def test_samples_for_the_warm_up_have_the_longest_length(source: Callable[..., PromptSource]) -> None:
    samples = source().samples(CELLS)
    assert {len(ids) for ids in samples} == {225}
    assert len({tuple(ids) for ids in samples}) == len(samples) == 8


def test_cells_are_shuffled_within_a_prompt_by_the_seed() -> None:
    plan = RunPlan()
    orders = {tuple(cell.length for cell in shuffled_cells(plan, CELLS, f"a/{n}")) for n in range(40)}
    assert len(orders) == 6  # every order of three occurs
    assert shuffled_cells(plan, CELLS, "a/1") == shuffled_cells(plan, CELLS, "a/1")
    other = [shuffled_cells(build({"seed": 1}), CELLS, f"a/{n}") for n in range(40)]
    assert other != [shuffled_cells(plan, CELLS, f"a/{n}") for n in range(40)]


def test_a_run_that_stops_at_the_first_proof_starts_with_suspects() -> None:
    plan = build({"fail_fast": True})
    for n in range(20):
        assert shuffled_cells(plan, CELLS, f"a/{n}")[0].kind == "suspect"


def client(response: httpx.Response | Exception) -> httpx.Client:
    def handler(_: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    return httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake")


MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("response", "error", "says"),
    [
        (httpx.ConnectError("refused"), UnreachableError, "does not answer on /tokenize"),
        (httpx.Response(404, text="Not Found"), PromptError, "no usable /tokenize.*404: Not Found"),
        (httpx.Response(200, text="<html>"), PromptError, "no usable /tokenize.*not JSON"),
        (httpx.Response(200, json=[1, 2]), PromptError, "no usable /tokenize"),
        (httpx.Response(200, json={"tokens": [1, 2], "count": 3}), PromptError, "contradicts itself"),
        (httpx.Response(200, json={"tokens": ["a"]}), PromptError, "no token ids came"),
    ],
)
def test_a_server_whose_tokenize_cannot_be_used(
    response: httpx.Response | Exception, error: type[Exception], says: str, prompt_folder: Path
) -> None:
    plan = build({"prompts": {"folder": str(prompt_folder)}})
    tokenizer = open_prompts(plan, client(response), sglang).tokenizer
    with pytest.raises(error, match=says) as caught:
        tokenizer.encode(MESSAGES)
    assert not isinstance(caught.value, NotWhatWasAskedError)


def test_without_a_run_the_embedded_tokenizer_is_used() -> None:
    with tokenizer_for(RunPlan()) as tokenizer:
        assert isinstance(tokenizer, EmbeddedTokenizer)
        assert tokenizer.vocab_size == 2048


@pytest.mark.parametrize(
    ("covered", "top_k"), [(0.999, 20), (0.93, 20), (0.92, 200), (0.3, 200), (math.nan, 20)]
)
def test_more_logprobs_are_asked_where_the_first_ones_leave_too_much_open(
    covered: float, top_k: int, source: Callable[..., PromptSource], observation: Any
) -> None:
    """ln 2 x (1 - 0.928) is the 0.05 nat that censoring may leave open."""
    made = source()
    top = [(n, math.log(covered / 4)) for n in range(4)]
    made.admit(made.order[0], observation(role="screen", top=[top]), sure=0.9)
    assert made.top_k(made.order[0].id, 0.05) == top_k
    assert made.top_k(made.order[0].id, 0.5) == 20
    assert made.top_k("never/screened", 0.05) == 20
