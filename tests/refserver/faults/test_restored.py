"""What a hit gets back from the cache: state, pages, scales, or memory nobody wrote."""

from collections.abc import Callable

import numpy as np
import pytest

from .conftest import HEALTHY, VISIBLE, Engine

Get = Callable[..., Engine]
Prompts = Callable[..., list[list[int]]]
Distance = Callable[..., float]

# (fault, profile that leans on the damaged piece, what every hit at a tail of 1 is off by, in nats)
ON_HITS = [
    ("wrong-token-checkpoint", "quiz-state", 0.1),
    ("zeroed-state", "quiz-state", 0.1),
    ("no-state", "quiz-state", 0.1),
    ("kv-scale", "quiz-kv", 0.1),
    ("nan-uniform", "quiz-state", 0.1),
]


@pytest.mark.parametrize(("fault", "profile", "least"), ON_HITS)
def test_every_hit_is_wrong_and_no_cold_answer(
    engine: Get, prompts: Prompts, distance: Distance, fault: str, profile: str, least: float
) -> None:
    faulty, healthy = engine(fault, profile=profile), engine(profile=profile)
    for ids in prompts(193, number=4):
        cold, hit = faulty.pair(ids)
        assert distance(cold, healthy.send(ids)) == 0.0
        assert distance(cold, hit) > least


@pytest.mark.parametrize(("fault", "profile"), [(fault, profile) for fault, profile, _ in ON_HITS])
def test_a_rate_picks_prompts_and_spares_the_rest(
    engine: Get, prompts: Prompts, distance: Distance, fault: str, profile: str
) -> None:
    half = engine(f"{fault}:rate=0.5", profile=profile)
    apart = [distance(*half.pair(ids)) for ids in prompts(193)]
    assert apart == pytest.approx([distance(*half.pair(ids)) for ids in prompts(193)], abs=HEALTHY)
    assert 0 < sum(jsd > VISIBLE for jsd in apart) < len(apart)
    assert all(jsd > VISIBLE or jsd < HEALTHY for jsd in apart)


def test_a_zeroed_state_needs_a_short_suffix(engine: Get, prompts: Prompts, distance: Distance) -> None:
    faulty = engine("zeroed-state:suffix=2")
    wrong = [distance(*faulty.pair(prompts(length, number=1)[0])) > 0.1 for length in (193, 194, 195, 225)]
    assert wrong == [True, True, False, False]


@pytest.mark.parametrize("family", ["capital", "recall"])
def test_a_wrong_checkpoint_shows_on_longer_prompts_from_the_same_seed(
    engine: Get, prompts: Prompts, distance: Distance, family: str
) -> None:
    faulty = engine("wrong-token-checkpoint")
    (ids,) = prompts(194, family, 1)
    namespace = faulty.name()
    faulty.send(ids[:193], namespace)
    hit = faulty.send(ids, namespace)
    assert hit.cached_tokens == 192
    assert distance(faulty.send(ids), hit) > VISIBLE


@pytest.mark.parametrize("surface", ["null", "500", "clamped"])
def test_unwritten_memory_makes_hits_nan_and_no_other_answer(
    engine: Get, prompts: Prompts, surface: str
) -> None:
    faulty = engine(f"nan-{surface}")
    assert faulty.service.settings.nan_reply == surface
    cold, hit = faulty.pair(prompts(193, number=1)[0], new=3)
    assert all(np.isfinite(logprob) for logprob, _ in cold.output.tokens)
    assert all(np.isnan(logprob) for logprob, _ in hit.output.tokens)
    assert hit.output_ids == [0, 0, 0]


def test_a_sanitised_row_is_flat(engine: Get, prompts: Prompts) -> None:
    _, hit = engine("nan-uniform").pair(prompts(193, number=1)[0])
    assert hit.output_ids == [0]
    assert hit.output.tokens[0][0] == pytest.approx(-np.log(2048), abs=1e-5)


def test_a_stale_conv_is_small_and_the_previous_prompts(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    """The report found divergences of 5e-6 nats: seen against a floor of zero, far below any fixed bound."""
    healthy, faulty = engine(), engine("stale-conv")
    first, *others = prompts(193)
    assert distance(*faulty.pair(first)) < HEALTHY  # nothing was kept before it
    for ids in others:
        cold, hit = faulty.pair(ids)
        assert distance(cold, healthy.send(ids)) == 0.0
        assert distance(cold, hit) > 10 * HEALTHY


def test_a_shared_page_holds_another_prompts_keys(engine: Get, prompts: Prompts, distance: Distance) -> None:
    healthy, faulty = engine(profile="quiz-kv"), engine("shared-page", profile="quiz-kv")
    first, *others = prompts(195, number=5)
    assert distance(*faulty.pair(first)) < HEALTHY
    for ids in others:
        cold, hit = faulty.pair(ids)
        assert distance(cold, healthy.send(ids)) == 0.0
        assert distance(cold, hit) > 0.1


def test_drift_begins_after_so_many_requests_and_grows(
    engine: Get, prompts: Prompts, distance: Distance
) -> None:
    asked = prompts(193)
    faulty = engine("drift:after=16")
    wrong = [distance(*faulty.pair(asked[turn % 8])) > VISIBLE for turn in range(24)]
    assert not any(wrong[:8])  # two requests a turn
    assert all(wrong[16:])
    assert 0 < sum(wrong[8:16]) < 8


def test_drift_leaves_cold_answers_alone(engine: Get, prompts: Prompts, distance: Distance) -> None:
    faulty, healthy = engine("drift:after=1"), engine()
    for ids in prompts(193, number=4):
        assert distance(faulty.send(ids), healthy.send(ids)) == 0.0
