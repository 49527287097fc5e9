"""Replies that say something else than what was computed, and benign noise."""

from collections.abc import Callable

import numpy as np
import pytest

from .conftest import HEALTHY, Engine, row

Get = Callable[..., Engine]
Prompts = Callable[..., list[list[int]]]
Distance = Callable[..., float]


def test_shifted_logprobs_are_those_of_the_row_before(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    healthy, faulty = engine(), engine("shifted-logprobs")
    asked = prompts(193, number=3)
    rights = [healthy.send(ids, new=4) for ids in asked]
    shifted = [faulty.send(ids, new=4) for ids in asked]
    for index, (right, got) in enumerate(zip(rights, shifted, strict=True)):
        assert got.output_ids == right.output_ids
        assert [token for _, token in got.output.tokens] == got.output_ids
        for position in range(1, 4):
            assert (row(got, position) == row(right, position - 1)).all()
        if index:
            assert (row(got) == row(rights[index - 1], 3)).all()
            assert distance(got, right) > 0.1


def test_shard_logprobs_keep_their_order_and_sum_to_more_than_one(engine: Get, prompts: Prompts) -> None:
    healthy, faulty = engine(), engine("shard-logprobs")
    size = healthy.vocabulary // 8
    for ids in prompts(193, number=3):
        right, got = healthy.send(ids, new=4), faulty.send(ids, new=4)
        assert got.output_ids == right.output_ids
        for position in range(4):
            before, after = row(right, position), row(got, position)
            assert np.ptp(after - before) < 1e-3
            assert np.exp(after[:size].astype(float)).sum() == pytest.approx(1.0, abs=1e-4)
            assert np.exp(after.astype(float)).sum() > 1.0 + 1e-4


def test_shifted_logprobs_leave_prompt_logprobs_alone(engine: Get, prompts: Prompts) -> None:
    ids = prompts(193, number=1)[0]
    right, got = (one.score(ids, 100) for one in (engine(), engine("shifted-logprobs")))
    assert got.prompt.tokens == right.prompt.tokens
    assert len(got.prompt.tokens) == 93


@pytest.mark.parametrize(
    ("fault", "reported"),
    [("none", [0, 192]), ("wrong-count", [0, 128]), ("null-counts", [None, None]), ("never-hits", [0, 0])],
)
def test_counts(
    engine: Get, prompts: Prompts, distance: Distance, fault: str, reported: list[int | None]
) -> None:
    one, ids = engine(fault), prompts(193, number=1)[0]
    namespace = one.name()
    sends = [one.send(ids, namespace) for _ in range(2)]
    assert [send.reported_tokens for send in sends] == reported
    assert [send.cached_tokens for send in sends] == [0, 0 if fault == "never-hits" else 192]
    assert distance(*sends) < HEALTHY


def test_no_logprobs_leaves_the_text(engine: Get, prompts: Prompts) -> None:
    ids = prompts(193, number=1)[0]
    silent, telling = engine("no-logprobs").send(ids, new=3), engine().send(ids, new=3)
    assert silent.output.tokens == silent.output.top == []
    assert silent.output_ids == telling.output_ids


@pytest.mark.parametrize(("fault", "cached"), [("none", 0), ("lying-flush", 192)])
def test_a_flush_that_lies_says_yes_and_keeps_everything(
    engine: Get, prompts: Prompts, fault: str, cached: int
) -> None:
    one, ids = engine(fault), prompts(193, number=1)[0]
    namespace = one.name()
    one.send(ids, namespace)
    assert one.service.scheduler.flush().result(timeout=10) is True
    assert one.send(ids, namespace).cached_tokens == cached


def test_hit_jitter_is_on_hits_only_and_never_the_same(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    healthy, noisy = engine(), engine("hit-jitter")
    for ids in prompts(193, number=4):
        cold, hit = noisy.pair(ids, new=3)
        assert distance(cold, healthy.send(ids)) == 0.0
        assert HEALTHY < distance(cold, hit) < 1e-4
        assert hit.output_ids == cold.output_ids
        assert distance(hit, cold, 2) < HEALTHY  # decoding is quiet


def test_batch_noise_goes_by_the_size_of_the_batch(engine: Get, prompts: Prompts, distance: Distance) -> None:
    noisy, healthy = engine("batch-noise"), engine()
    ids, other = prompts(193, number=2)
    alone, again, together = noisy.send(ids), noisy.send(ids), noisy.batch([ids, other])[0]
    assert distance(alone, again) == 0.0
    for got, base in ((together, alone), (alone, healthy.send(ids))):
        assert HEALTHY < distance(got, base) < 1e-4
        assert got.output_ids == base.output_ids
