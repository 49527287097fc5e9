"""Logits rows: another request's, made flat, or with benign noise."""

from collections.abc import Callable

from .conftest import HEALTHY, Engine

Get = Callable[..., Engine]
Prompts = Callable[..., list[list[int]]]
Distance = Callable[..., float]


def test_swapped_row_answers_with_the_neighbours_word(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    asked = prompts(193, number=4)
    alone = [engine().send(ids) for ids in asked]
    swapped = engine("swapped-row").batch(asked)
    for index, got in enumerate(swapped):
        assert distance(got, alone[index]) > 0.5
        assert distance(got, alone[(index + 1) % 4]) < HEALTHY
        assert got.output_ids == alone[(index + 1) % 4].output_ids


def test_swapped_row_needs_a_batch(engine: Get, prompts: Prompts, distance: Distance) -> None:
    healthy, faulty = engine(), engine("swapped-row")
    for ids in prompts(193, number=4):
        right, got = healthy.send(ids, new=6), faulty.send(ids, new=6)
        assert [distance(right, got, position) for position in range(6)] == [0.0] * 6
        assert distance(*faulty.pair(ids)) < HEALTHY


def test_swapped_row_shows_in_decode_too(engine: Get, prompts: Prompts, distance: Distance) -> None:
    """Requests that arrive apart have their own first token, and share the decode steps."""
    asked = prompts(193, number=2)
    alone = [engine().send(ids, new=40) for ids in asked]
    faulty = engine("swapped-row")
    pairs = [faulty.sequence(ids, faulty.name(), 40) for ids in asked]
    for sequence, _ in pairs:
        faulty.service.scheduler.submit([sequence])
    assert all(done.wait(20) for _, done in pairs)
    for right, (got, _) in zip(alone, pairs, strict=True):
        assert distance(right, got) == 0.0
        assert max(distance(right, got, position) for position in range(1, 40)) > 0.1


def test_swapped_row_at_a_rate_spares_the_other_prompts(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    asked = prompts(193)
    healthy, half = engine(), engine("swapped-row:rate=0.5")
    right = healthy.batch(asked)
    wrong = [distance(a, b) > 0.5 for a, b in zip(right, half.batch(asked), strict=True)]
    assert 0 < sum(wrong) < len(asked)
    assert wrong == [distance(a, b) > 0.5 for a, b in zip(right, half.batch(asked), strict=True)]
