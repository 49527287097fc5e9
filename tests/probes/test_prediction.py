"""The predicted `cached_tokens` against what real servers reported and a cache that walks the tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.probes.prediction import CachePrediction

RECORDED = json.loads((Path(__file__).parent / "cached_tokens.json").read_text(encoding="utf-8"))["rows"]
STRATEGIES = ("extra_buffer", "no_buffer", "attention only")


@pytest.mark.parametrize(
    ("setting", "strategy"),
    [
        ("extra_buffer page 1", "extra_buffer"),
        ("extra_buffer page 64", "extra_buffer"),
        ("strategy and page size left out (auto)", "extra_buffer"),
        ("no_buffer", "no_buffer"),
    ],
)
def test_recorded_servers(setting: str, strategy: str) -> None:
    rows = RECORDED[setting]
    assert rows
    for length, cached in rows.items():
        cache = CachePrediction(64, strategy)
        assert [cache.send(int(length)) for _ in cached] == cached, length


@pytest.mark.parametrize(
    ("length", "cached"),
    [(193, [0, 0, 128, 128, 128]), (194, [0, 192, 192]), (65, [0, 0, 0, 0])],
)
def test_retreat_as_measured_on_sglang_0_5_21(length: int, cached: list[int]) -> None:
    cache = CachePrediction(64, "extra_buffer", min_tail=2)
    assert [cache.send(length) for _ in cached] == cached


@given(
    grid=st.sampled_from([1, 4, 6, 64, 128]),
    strategy=st.sampled_from(STRATEGIES),
    min_tail=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
)
def test_against_a_cache_that_walks_the_tokens(
    grid: int, strategy: str, min_tail: int, lengths: list[int], token_cache: Any
) -> None:
    """Any mix of prefixes of one text, in any order."""
    text = tuple(range(1000, 1300))
    cache = CachePrediction(grid, strategy, min_tail)
    walked = token_cache(grid, strategy, min_tail)
    for length in lengths:
        assert cache.send(length) == walked.send(text[:length]), (length, lengths)


@given(
    st.integers(1, 400), st.sampled_from([1, 2]), st.sampled_from(STRATEGIES), st.sampled_from([1, 64, 128])
)
def test_a_hit_leaves_something_to_compute_and_lies_on_the_grid(
    length: int, min_tail: int, strategy: str, grid: int
) -> None:
    cache = CachePrediction(grid, strategy, min_tail)
    assert cache.send(length) == 0  # a fresh namespace holds nothing
    hits = [cache.send(length) for _ in range(4)]
    assert all(hit == 0 or length - hit >= min_tail for hit in hits)
    assert all(hit % grid == 0 for hit in hits)
    assert hits == sorted(hits)
    assert hits[2] == hits[3]  # settled


def test_no_buffer_serves_a_longer_prompt_from_the_end_of_a_shorter_one() -> None:
    cache = CachePrediction(64, "no_buffer")
    assert [cache.send(192), cache.send(193), cache.send(193)] == [0, 192, 192]


def test_a_shared_prefix_moves_the_checkpoint_to_the_branch() -> None:
    """The reason for a namespace per prompt: the second prompt's own end is not kept."""
    cache = CachePrediction(64)
    assert [cache.send(200), cache.send(321), cache.send(321), cache.send(321)] == [0, 192, 320, 320]
    cache = CachePrediction(64)
    cache.checkpoints.clear()
    cache.kv = 130  # the key-value cache knows 130 tokens of it, no state is left
    assert [cache.send(321), cache.send(321), cache.send(321)] == [0, 128, 320]
