"""Damage to any restored piece must show: a model that ignored it would certify a broken cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from fidelity.refserver.chat import render
from fidelity.refserver.model import Model, Result, Segment, State
from fidelity.refserver.moe import Experts
from fidelity.refserver.weights import PROFILES, load

PROFILE_NAMES = ["random", *sorted(path.parent.name for path in PROFILES.glob("*/weights.npz"))]
POSITION, PAGE = 192, 64
TAILS = (1, 2, 8, 33, 63)
BOUND = 5e-4  # |Δ logit| of a healthy hit; measured up to 6e-5
SMALLEST_FLOOR = 1e-15  # nats: what float64 sums leave of a divergence of zero


@dataclass
class Hit:
    """One prompt at one tail: the ids sent, their fresh prefill and the state a hit resumes from."""

    ids: np.ndarray
    cold: Result
    state: State


def state_zeroed(state: State) -> State:
    zeros = tuple(np.zeros_like(s) for s in state.recurrent.state)
    return replace(state, recurrent=replace(state.recurrent, state=zeros))


def conv_state_zeroed(state: State) -> State:
    zeros = tuple(np.zeros_like(c) for c in state.recurrent.conv)
    return replace(state, recurrent=replace(state.recurrent, conv=zeros))


def last_kv_page_zeroed(state: State) -> State:
    def zeroed(cached: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate([x[:-PAGE], np.zeros_like(x[-PAGE:])]) for x in cached)

    return replace(state, keys=zeroed(state.keys), values=zeroed(state.values))


def position_off_by_one(state: State) -> State:
    return replace(state, length=state.length + 1)


def prompts() -> list[np.ndarray]:
    """Token ids of four chats of more than 260 tokens; a prompt is the end of one of them."""
    tokenizer = Tokenizer.from_file(str(PROFILES / "tokenizer.json"))
    filler = " ".join(str(n) for n in range(1, 120))
    questions = [
        f"I have reviewed quiz items {filler}. What is the capital of {country}? Only the city name."
        for country in ("France", "Italy", "Japan", "Norway")
    ]
    texts = [render([{"role": "user", "content": q}], enable_thinking=False) for q in questions]
    return [np.array(tokenizer.encode(text).ids) for text in texts]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: Model(load(name), Experts()) for name in PROFILE_NAMES}


@pytest.fixture(scope="module")
def hits(models: dict[str, Model], resume) -> dict[tuple[str, int], list[Hit]]:
    chats = prompts()
    return {
        (name, tail): [
            Hit(ids[-POSITION - tail :], *resume(m, ids[-POSITION - tail :], POSITION)) for ids in chats
        ]
        for name, m in models.items()
        for tail in TAILS
    }


def answer(model: Model, hit: Hit, state: State) -> np.ndarray:
    (result,) = model.forward([Segment(hit.ids[POSITION:], state)])
    return result.logits[-1]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("name", PROFILE_NAMES)
def test_a_healthy_hit_is_the_fresh_prefill(models, hits, name: str, tail: int) -> None:
    for hit in hits[name, tail]:
        row = answer(models[name], hit, hit.state)
        np.testing.assert_allclose(row, hit.cold.logits[-1], atol=BOUND)
        assert row.argmax() == hit.cold.logits[-1].argmax()


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    "damage", [state_zeroed, conv_state_zeroed, last_kv_page_zeroed, position_off_by_one]
)
def test_damage_shows(models, hits, jsd, damage: Callable[[State], State], tail: int) -> None:
    """On every prompt of at least one profile, 100 times beyond what a healthy hit moves any prompt."""

    def ratio(name: str) -> float:
        def moved(change: Callable[[State], State]) -> list[float]:
            return [
                jsd(answer(models[name], hit, change(hit.state)), hit.cold.logits[-1])
                for hit in hits[name, tail]
            ]

        return min(moved(damage)) / max(SMALLEST_FLOOR, *moved(lambda state: state))

    ratios = {name: ratio(name) for name in PROFILE_NAMES}
    assert max(ratios.values()) >= 100, ratios
