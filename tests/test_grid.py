"""The grid found from counts, against the prediction that the probes go by, which is written apart."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.engines.facts import PROMPT_END
from fidelity.grid import CHAINS, Found, Send, discover, lengths_of
from fidelity.probes.prediction import CachePrediction

STEPPED = ("attention only", "extra_buffer", "align")
Count = Callable[[int, str, int, int], int | None]
"""(chain, what, tokens sent, tokens truly cached) -> what the server says."""


def counted(
    grid: int,
    strategy: str = "attention only",
    min_tail: int = 1,
    *,
    cuts: bool = True,
    says: Count = lambda chain, what, sent, cached: cached,
) -> Found:
    """What is found of such a cache. Without `cuts` prompts come out a few tokens longer than asked for."""

    def run_chain(chain: int, length: int) -> list[Send]:
        cache = CachePrediction(grid, strategy, min_tail)
        lengths = lengths_of(length if cuts else length + 3 * chain, cuts=cuts)
        return [Send(chain, what, n, says(chain, what, n, cache.send(n))) for what, n in lengths.items()]

    return discover(run_chain, cuts=cuts)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 256), st.sampled_from(STEPPED), st.one_of(st.just(1), st.integers(1, 64)))
def test_every_grid_kind_and_tail_is_found_or_left_open(grid: int, strategy: str, min_tail: int) -> None:
    found = counted(grid, strategy, min_tail)
    assert found.grid == grid
    assert found.strategy == strategy or found.kind == "multiples"
    assert len(found.sends) <= 12
    hits = [one.tail for one in found.sends if one.what != "cold" and one.cached]
    assert found.least_tail == min(hits) >= min_tail


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 256), st.sampled_from(STEPPED))
def test_whole_messages_alone_find_it_too_or_leave_it_open(grid: int, strategy: str) -> None:
    grid += strategy != "attention only"
    found = counted(grid, strategy, cuts=False)
    assert found.grid in (grid, None)
    assert found.grid == grid or found.kind in ("never hits", "not told apart")
    assert {one.what for one in found.sends} == {"cold", "again"}
    assert found.may_cut or strategy == "extra_buffer" or grid == 1


@pytest.mark.parametrize(
    ("grid", "strategy", "cuts", "may_cut"),
    [
        (64, "attention only", True, False),
        (64, "attention only", False, True),
        (64, "align", True, True),
        (64, "align", False, True),
        (64, "extra_buffer", True, False),
        (1, "attention only", False, False),
        (1024, "attention only", False, True),
    ],
)
def test_whether_cold_prefills_may_be_cut(grid: int, strategy: str, cuts: bool, may_cut: bool) -> None:
    assert counted(grid, strategy, cuts=cuts).may_cut == may_cut


@pytest.mark.parametrize(
    ("grid", "strategy", "says"),
    [
        (1, "attention only", "every token (full reuse): tail 1 for every length that was sent (4)"),
        (64, "attention only", "whole pages of 64 tokens"),
        (64, "extra_buffer", "recurrent checkpoints every 64 tokens"),
        (64, "align", "recurrent checkpoints, with every prefill cut there, every 64 tokens"),
        (
            1,
            "no_buffer",
            "the same prompt again is not served, a longer one resumes where one before it ended",
        ),
    ],
)
def test_the_conclusion_in_words(grid: int, strategy: str, says: str) -> None:
    found = counted(grid, strategy)
    assert found.says == says
    assert found.strategy == (PROMPT_END if strategy == "no_buffer" else strategy)


def test_a_state_kept_before_the_end_of_each_prompt() -> None:
    def says(chain: int, what: str, sent: int, cached: int) -> int:
        return {"cold": 0, "again": sent - 4, "longer": sent - 72}[what]

    found = counted(1, says=says)
    assert (found.grid, found.strategy, found.least_tail) == (1, PROMPT_END, 4)
    assert "leaves 4 tokens" in found.says


def test_a_smallest_tail_is_told_as_far_as_it_was_seen() -> None:
    assert counted(64, "extra_buffer", 2).says.endswith("leaves at least 2 to 11 tokens")
    assert "at least" not in counted(64, "extra_buffer", 1).says


def test_a_grid_beyond_the_longest_prompt_is_no_claim_of_none() -> None:
    found = counted(1024)
    assert (found.kind, found.grid) == ("never hits", None)
    assert "in prompts of up to 632 tokens" in found.says
    assert len(found.sends) == 6


def test_a_grid_seen_only_in_the_longest_prompt() -> None:
    assert counted(528).grid == 528


def test_counts_that_are_not_told() -> None:
    found = counted(64, says=lambda *_: None)
    assert (found.kind, found.grid, len(found.sends)) == ("not told", None, 3)


def test_misses_that_are_not_told_are_misses() -> None:
    found = counted(64, "extra_buffer", says=lambda chain, what, sent, cached: cached or None)
    assert (found.grid, found.strategy) == (64, "extra_buffer")


@pytest.mark.parametrize("strategy", STEPPED)
@pytest.mark.parametrize(
    "wrong",
    [lambda cached: max(cached - 64, 0), lambda cached: cached and cached + 1, lambda cached: cached // 3],
)
def test_wrong_counts_contradict_each_other(strategy: str, wrong: Callable[[int], int]) -> None:
    found = counted(64, strategy, says=lambda chain, what, sent, cached: wrong(cached))
    assert (found.kind, found.grid) == ("contradictory", None)


def test_one_wrong_count_late_is_enough() -> None:
    def says(chain: int, what: str, sent: int, cached: int) -> int:
        return cached - 64 if (chain, what) == (CHAINS, "longer") else cached

    assert counted(64, says=says).kind == "contradictory"


def test_a_cold_send_from_the_cache_is_none() -> None:
    found = counted(64, says=lambda chain, what, sent, cached: cached or 64)
    assert found.kind == "contradictory"
    assert "no send here is a cold one" in found.says
