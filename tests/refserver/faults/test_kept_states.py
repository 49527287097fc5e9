"""Recurrent state kept from the wrong place, and state that decoding does not write back."""

from collections.abc import Callable
from itertools import starmap

import numpy as np
import pytest

from .conftest import HEALTHY, VISIBLE, Engine

Get = Callable[..., Engine]
Prompts = Callable[..., list[list[int]]]
Distance = Callable[..., float]

LENGTHS = (193, 258, 194, 322)


@pytest.fixture
def ragged(prompts: Prompts) -> list[list[int]]:
    """Four prompts of different lengths and questions."""
    return [prompts(length, number=index + 1)[index] for index, length in enumerate(LENGTHS)]


def cached_together(one: Engine, ragged: list[list[int]], distance: Distance) -> list[float]:
    """Each prompt's hit against its cold answer, after one prefill of all of them."""
    names = [one.name() for _ in ragged]
    colds = one.batch(ragged, names)
    hits = [one.send(ids, name) for ids, name in zip(ragged, names, strict=True)]
    assert [hit.cached_tokens for hit in hits] == [length // 64 * 64 for length in LENGTHS]
    return [distance(cold, hit) for cold, hit in zip(colds, hits, strict=True)]


def test_ragged_state_spares_the_first_of_a_batch_only(
    engine: Get, ragged: list[list[int]], distance: Distance
) -> None:
    first, *others = cached_together(engine("ragged-state"), ragged, distance)
    assert first < HEALTHY
    assert min(others) > VISIBLE
    assert max(cached_together(engine(), ragged, distance)) < HEALTHY


def test_ragged_state_leaves_prompts_prefilled_alone_and_cold_batches(
    engine: Get, ragged: list[list[int]], distance: Distance
) -> None:
    faulty, healthy = engine("ragged-state"), engine()
    for ids in ragged:
        assert distance(*faulty.pair(ids)) < HEALTHY
    for cold, right in zip(faulty.batch(ragged), healthy.batch(ragged), strict=True):
        assert distance(cold, right) == 0.0


def test_ragged_state_at_a_rate_is_the_same_prompts_each_time(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    asked = prompts(193)
    half = engine("ragged-state:rate=0.5")

    def wrong() -> list[bool]:
        names = [half.name() for _ in asked]
        colds = half.batch(asked, names)
        again = [half.send(ids, name) for ids, name in zip(asked, names, strict=True)]
        return [distance(cold, hit) > VISIBLE for cold, hit in zip(colds, again, strict=True)]

    once = wrong()
    assert once == wrong()
    assert not once[0]
    assert 0 < sum(once) < len(asked) - 1


def test_decode_after_is_bit_equal_up_to_there_and_wrong_beyond(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    healthy, faulty = engine(), engine("decode-after:after=5")
    for ids in prompts(193, number=4):
        right, wrong = healthy.send(ids, new=14), faulty.send(ids, new=14)
        apart = [distance(right, wrong, position) for position in range(14)]
        assert apart[:6] == [0.0] * 6
        assert max(apart[6:]) > 0.1
        assert np.median(apart[6:]) > 0.01


def test_decode_after_leaves_prefills_and_hits_alone(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    healthy, faulty = engine(), engine("decode-after:after=1")
    for ids in prompts(193, number=4):
        (cold, hit), (right, right_hit) = faulty.pair(ids), healthy.pair(ids)
        assert distance(cold, right) == distance(hit, right_hit) == 0.0


def test_decode_after_damages_a_batch_as_it_does_one(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    asked = prompts(193, number=2)
    pairs = zip(*(one.batch(asked, new=12) for one in (engine(), engine("decode-after"))), strict=True)
    assert min(starmap(lambda right, wrong: distance(right, wrong, 11), pairs)) > 0.01
