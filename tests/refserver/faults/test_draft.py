"""Faults of speculative decoding: guesses that fail and answers that stay right, or the other way round."""

from collections.abc import Callable

import numpy as np
import pytest

from fidelity.refserver.chat import render
from fidelity.refserver.sequence import Sequence
from fidelity.refserver.training.texts import LONG_ANSWERS

from .conftest import HEALTHY, Engine

Get = Callable[..., Engine]
Distance = Callable[..., float]
NEW = 40


@pytest.fixture
def memorised(engine: Get) -> list[list[int]]:
    """Prompts whose long answers the model knows by heart, so that a draft can guess them."""
    texts = [render([{"role": "user", "content": q}], enable_thinking=False) for q, *_ in LONG_ANSWERS[:4]]
    return [engine().service.text.encode(text) for text in texts]


def accepted(sequence: Sequence) -> float:
    return sum(sequence.accepted) / sequence.proposed


def test_a_stale_draft_is_rejected_and_the_answer_stays(
    engine: Get, memorised: list[list[int]], distance: Distance
) -> None:
    healthy, faulty = engine(speculative="NEXTN"), engine("draft", speculative="NEXTN")
    rates = []
    for ids in memorised:
        right, got = healthy.send(ids, new=NEW), faulty.send(ids, new=NEW)
        assert got.output_ids == right.output_ids
        assert max(distance(right, got, position) for position in range(NEW)) < HEALTHY
        rates.append((accepted(right), accepted(got)))
    before, after = np.mean(rates, axis=0)
    assert after < before / 2


def test_a_stale_draft_at_a_rate_spares_the_other_prompts(engine: Get, memorised: list[list[int]]) -> None:
    healthy = engine(speculative="NEXTN")
    half = engine("draft:rate=0.5", speculative="NEXTN", seed=1)
    same = [half.send(ids, new=NEW).accepted == healthy.send(ids, new=NEW).accepted for ids in memorised]
    assert 0 < sum(same) < len(same)


def test_a_draft_changes_nothing_without_speculation(
    engine: Get, memorised: list[list[int]], distance: Distance
) -> None:
    right, got = (one.send(memorised[0], new=NEW) for one in (engine(), engine("draft")))
    assert max(distance(right, got, position) for position in range(NEW)) == 0.0
    assert got.accepted == []


def test_decode_after_holds_within_a_verification(
    engine: Get, memorised: list[list[int]], distance: Distance
) -> None:
    """Wrong from the same token on as in plain decoding, whatever the drafts."""
    plain = engine("decode-after:after=9").send(memorised[0], new=NEW)
    drafted = engine("decode-after:after=9", speculative="NEXTN").send(memorised[0], new=NEW)
    right = engine().send(memorised[0], new=NEW)
    for got in (plain, drafted):
        apart = [distance(right, got, position) for position in range(NEW)]
        assert max(apart[:10]) < HEALTHY
        assert max(apart[10:]) > 0.1
