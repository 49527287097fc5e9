"""The prefix cache alone, with states small enough to tell apart by one number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.refserver.cache import Match, Page, PrefixCache, checkpoint_position
from fidelity.refserver.model import Recurrent

PAGE = 4


def ids_of(*tokens: int) -> np.ndarray:
    return np.asarray(tokens, np.int64)


def tokens(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int64)


def kv(count: int) -> tuple[np.ndarray, ...]:
    """One layer's keys or values: position p holds p."""
    return (np.arange(count, dtype=np.float32).reshape(count, 1, 1),)


def state(mark: float) -> Recurrent:
    return Recurrent((np.full((1, 1), mark, np.float32),), (np.full((1, 1, 1), mark, np.float32),))


def insert(cache: PrefixCache, ids: np.ndarray, namespace: str = "", mark: float = 0.0) -> None:
    cache.insert(namespace, ids, state(mark), kv(len(ids)), kv(len(ids)))


def cache_of(max_tokens: int = 1000, max_states: int = 100, page: int = PAGE) -> PrefixCache:
    return PrefixCache(page, max_tokens, max_states)


def test_nothing_matches_an_empty_cache() -> None:
    match = cache_of().match("", tokens(9), 8)
    assert (match.length, match.kv_length) == (0, 0)


def test_match_is_whole_pages_within_the_limit() -> None:
    cache = cache_of()
    for end in (4, 8):
        insert(cache, tokens(end))
    lengths = [cache.match("", tokens(20), limit).length for limit in range(10)]
    assert lengths == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8]


def test_a_page_without_a_state_is_no_place_to_resume_from() -> None:
    cache = cache_of()
    insert(cache, tokens(12))
    match = cache.match("", tokens(12), 11)
    assert (match.length, match.kv_length) == (0, 8)


def test_restore_joins_the_pages_up_to_the_deepest_state() -> None:
    cache = cache_of()
    insert(cache, tokens(8), mark=8)
    insert(cache, tokens(16), mark=16)
    restored = cache.restore(cache.match("", tokens(16), 15))
    assert restored.length == 8
    assert restored.recurrent.state[0].item() == 8
    np.testing.assert_array_equal(restored.keys[0].ravel(), np.arange(8))
    np.testing.assert_array_equal(restored.values[0].ravel(), np.arange(8))


def test_restore_refuses_a_match_without_a_state() -> None:
    page = Page(None, b"", 4)
    with pytest.raises(ValueError, match="recurrent state"):
        cache_of().restore(Match((page,), 1))


def test_cached_kv_is_a_copy() -> None:
    cache, keys = cache_of(), kv(4)
    cache.insert("", tokens(4), state(1), keys, kv(4))
    keys[0][:] = -1
    assert cache.restore(cache.match("", tokens(5), 4)).keys[0].ravel().tolist() == [0, 1, 2, 3]


def test_the_first_state_of_a_position_stays() -> None:
    cache = cache_of()
    insert(cache, tokens(4), mark=1)
    insert(cache, tokens(4), mark=2)
    assert cache.restore(cache.match("", tokens(5), 4)).recurrent.state[0].item() == 1
    assert (cache.tokens, cache.states) == (4, 1)


def test_namespaces_do_not_see_each_other() -> None:
    cache = cache_of()
    insert(cache, tokens(8), "a", mark=1)
    assert cache.match("b", tokens(9), 8).kv_length == 0
    assert cache.match("a", tokens(9), 8).length == 8


def test_prompts_share_the_pages_they_start_with() -> None:
    cache = cache_of()
    insert(cache, ids_of(0, 1, 2, 3, 10, 11, 12, 13))
    insert(cache, ids_of(0, 1, 2, 3, 20, 21, 22, 23))
    assert cache.tokens == 12


@pytest.mark.parametrize("count", [0, 3, 5])
def test_only_whole_pages_are_kept(count: int) -> None:
    with pytest.raises(ValueError, match="whole pages"):
        insert(cache_of(), tokens(count))


@pytest.mark.parametrize(
    ("matched", "kv_matched", "length", "expected"),
    [
        (0, 0, 193, 192),  # cold: the last grid point
        (0, 0, 192, 192),
        (0, 0, 63, None),  # none inside
        (192, 192, 193, None),  # a one-token tail crosses none
        (128, 128, 192, 192),
        (0, 128, 192, 128),  # KV agrees further than the state: the branching point instead
        (0, 191, 192, 128),
        (64, 64, 200, 192),
        (0, 70, 193, 64),
    ],
)
def test_one_checkpoint_a_prefill(matched: int, kv_matched: int, length: int, expected: int | None) -> None:
    ends = [end for end in (matched, kv_matched) if end]
    match = Match(tuple(Page(None, b"", end) for end in ends), 1 if matched else 0)
    assert checkpoint_position(match, length, 64) == expected


def test_tokens_are_bounded_and_the_least_recent_branch_goes_first() -> None:
    cache = cache_of(max_tokens=16)
    for first in (0, 100, 200):
        insert(cache, tokens(8, first))
        cache.match("", tokens(9), 8)  # the first prompt stays in use
    assert cache.tokens <= 16
    lengths = [cache.match("", tokens(9, first), 8).length for first in (0, 100, 200)]
    assert lengths == [8, 0, 8]
    assert cache.evicted_tokens == 8


def test_a_leaf_is_evicted_before_the_page_it_hangs_from() -> None:
    cache = cache_of(max_tokens=8)
    insert(cache, tokens(4))
    insert(cache, tokens(8))
    insert(cache, tokens(4, 100))
    assert cache.match("", tokens(9), 8).length == 4


def test_states_are_bounded_and_a_leaf_that_loses_its_state_goes_with_it() -> None:
    cache = cache_of(max_states=2)
    for first in (0, 100, 200):
        insert(cache, tokens(8, first))
    assert (cache.states, cache.tokens) == (2, 16)
    assert [cache.match("", tokens(9, first), 8).kv_length for first in (0, 100, 200)] == [0, 8, 8]


def test_an_inner_state_is_dropped_alone() -> None:
    cache = cache_of(max_states=2)
    insert(cache, tokens(4))
    insert(cache, tokens(8))
    deep = cache.match("", tokens(9), 8).pages[-1]
    cache._states.move_to_end(deep)  # make the inner state the least recently used
    insert(cache, tokens(4, 100))
    match = cache.match("", tokens(9), 8)
    assert (match.length, match.usable) == (8, 2)
    assert match.pages[0].recurrent is None


def test_a_whole_branch_goes_when_only_its_end_had_a_state() -> None:
    cache = cache_of(max_tokens=12)
    insert(cache, tokens(12), "a")
    insert(cache, tokens(4), "b")
    assert cache.tokens == 4
    assert cache.match("a", tokens(12), 12).kv_length == 0


def test_what_is_larger_than_the_bound_is_not_kept() -> None:
    cache = cache_of(max_tokens=8)
    insert(cache, tokens(12))
    assert (cache.tokens, cache.states) == (0, 0)


def test_eviction_does_not_disturb_a_restored_state() -> None:
    cache = cache_of(max_tokens=4)
    insert(cache, tokens(4), mark=7)
    restored = cache.restore(cache.match("", tokens(5), 4))
    insert(cache, tokens(4, 100))
    assert restored.recurrent.state[0].item() == 7
    assert restored.keys[0].ravel().tolist() == [0, 1, 2, 3]


def test_clear_forgets_everything() -> None:
    cache = cache_of()
    insert(cache, tokens(8))
    cache.clear()
    assert (cache.tokens, cache.states) == (0, 0)
    assert cache.match("", tokens(9), 8).kv_length == 0
    insert(cache, tokens(8))
    assert cache.match("", tokens(9), 8).length == 8


def mark_of(sent: list[int]) -> float:
    """A number that tells which tokens a state stands for."""
    return float(int("1" + "".join(map(str, sent)), 2))


@settings(max_examples=80, deadline=None)
@given(
    operations=st.lists(
        st.tuples(st.booleans(), st.sampled_from("ab"), st.lists(st.integers(0, 1), min_size=1, max_size=8)),
        max_size=40,
    ),
    max_tokens=st.integers(1, 20),
    max_states=st.integers(1, 6),
)
def test_bounds_and_invariants_hold_whatever_is_sent(
    operations: list[tuple[bool, str, list[int]]], max_tokens: int, max_states: int
) -> None:
    cache = PrefixCache(1, max_tokens, max_states)
    for inserting, namespace, sent in operations:
        ids = ids_of(*sent)
        if inserting:
            insert(cache, ids, namespace, mark=mark_of(sent))
        match = cache.match(namespace, ids, len(ids))
        assert b"".join(page.ids for page in match.pages) == ids[: match.kv_length].tobytes()
        if match.length:
            restored = cache.restore(match)
            assert restored.recurrent.state[0].item() == mark_of(sent[: match.length])
        pages = list(cache._pages)
        assert cache.tokens == len(pages) <= max_tokens
        assert cache.states == sum(page.recurrent is not None for page in pages) <= max_states
        assert all(page.children or page.recurrent is not None for page in pages)
        assert all(child in cache._pages for page in pages for child in page.children.values())
