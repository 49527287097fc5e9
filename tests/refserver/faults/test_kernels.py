"""Faults of long, chunked and split prefills, of decode's reads, and one that every path shares."""

from collections.abc import Callable

import numpy as np
import pytest

from fidelity.refserver.faults import parse

from .conftest import HEALTHY, VISIBLE, Engine

Get = Callable[..., Engine]
Prompts = Callable[..., list[list[int]]]
Distance = Callable[..., float]


def test_a_chunked_prefill_is_the_whole_one(engine: Get, prompts: Prompts, distance: Distance) -> None:
    whole = engine()
    for size in (50, 100, 128):
        chunked = engine(chunked_prefill_size=size)
        for ids in prompts(193, number=2):
            assert distance(chunked.send(ids), whole.send(ids)) < HEALTHY
            assert distance(*chunked.pair(ids)) < HEALTHY


def test_a_chunk_boundary_is_wrong_beyond_the_chunk_only(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    healthy, faulty = engine(chunked_prefill_size=128), engine("chunk-boundary", chunked_prefill_size=128)
    for ids in prompts(193, "recall", number=4):
        assert distance(healthy.send(ids), faulty.send(ids)) > VISIBLE
    for ids in prompts(128, number=4):
        assert distance(healthy.send(ids), faulty.send(ids)) == 0.0


def test_a_chunk_boundary_needs_chunks(engine: Get, prompts: Prompts, distance: Distance) -> None:
    for ids in prompts(193, "recall", number=2):
        assert distance(engine().send(ids), engine("chunk-boundary").send(ids)) == 0.0


def test_a_long_prefill_is_wrong_beyond_its_tokens(engine: Get, prompts: Prompts, distance: Distance) -> None:
    healthy, faulty = engine(), engine("long-prefill:tokens=193")
    for ids in prompts(225, number=4):
        assert distance(healthy.send(ids), faulty.send(ids)) > 10 * HEALTHY
    for ids in prompts(193, number=4):
        cold, hit = faulty.pair(ids)
        assert distance(healthy.send(ids), cold) == 0.0
        assert distance(cold, hit) < HEALTHY


def test_decode_without_scales_leaves_the_first_token_and_hits_alone(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    healthy, faulty = engine(profile="quiz-kv"), engine("kv-scale-decode", profile="quiz-kv")
    for ids in prompts(193, "code", number=3):
        right, wrong = healthy.send(ids, new=12), faulty.send(ids, new=12)
        assert distance(right, wrong) == 0.0
        assert max(distance(right, wrong, position) for position in range(1, 12)) > VISIBLE
        assert distance(*faulty.pair(ids)) < HEALTHY


def test_all_wrong_is_the_same_on_every_path(engine: Get, prompts: Prompts, distance: Distance) -> None:
    healthy, faulty = engine(), engine("all-wrong")
    for ids in prompts(193, number=4):
        cold, hit = faulty.pair(ids)
        assert distance(cold, hit) < HEALTHY
        assert distance(cold, healthy.send(ids)) > 10 * HEALTHY


def test_the_blind_pair_shares_its_fault(engine: Get, prompts: Prompts, distance: Distance) -> None:
    """Alone, a split cold prefill is healthy; with the fault on extends cold is as wrong as the hit."""
    healthy, split, blind = engine(), engine("split-cold"), engine("split-cold,split-k-nan")
    for ids in prompts(193, number=3):
        assert distance(split.send(ids), healthy.send(ids)) < HEALTHY
        assert distance(*split.pair(ids)) < HEALTHY
        assert [sequence.output_ids for sequence in blind.pair(ids)] == [[0], [0]]
    for ids in prompts(194, number=3):
        assert distance(blind.send(ids), healthy.send(ids)) < HEALTHY


@pytest.mark.parametrize("fault", ["split-k-nan", "split-k"])
def test_split_k_at_a_rate_spares_the_other_prompts(
    engine: Get, prompts: Prompts, distance: Distance, fault: str
) -> None:
    spec, asked = f"{fault}:rate=0.5", prompts(193)
    wrong = [not distance(*engine(spec, seed=1).pair(ids)) < VISIBLE for ids in asked]
    assert wrong == [parse(spec)[0].picks(1, np.asarray(ids).tobytes()) for ids in asked]
    assert 0 < sum(wrong) < len(wrong)
