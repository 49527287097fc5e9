"""Both seams of the retreat: the limit that sglang asks for, and the older hybrid cache's match."""

from __future__ import annotations

import importlib
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fidelity.guards.inserver import retreat
from fidelity.guards.inserver.marker import Marker


class Req:
    """The limit as 0.5.13 and later compute it."""

    def __init__(self, logprob_start_len: int = -1) -> None:
        self.logprob_start_len = logprob_start_len

    def _compute_max_prefix_len(self, input_len: int) -> int:
        longest = input_len - 1
        if self.logprob_start_len >= 0:
            longest = min(longest, self.logprob_start_len)
        return max(longest, 0)


@pytest.fixture
def schedule_batch() -> ModuleType:
    module = ModuleType(retreat.REQUESTS)
    module.Req = type("Req", (Req,), {"_compute_max_prefix_len": Req._compute_max_prefix_len})  # type: ignore[attr-defined]
    return module


def test_the_limit_leaves_two_tokens(schedule_batch: ModuleType, marker: Marker) -> None:
    retreat.patch(schedule_batch, marker)
    ask = schedule_batch.Req()._compute_max_prefix_len
    assert [ask(length) for length in (193, 65, 2, 1, 0)] == [191, 63, 0, 0, 0]
    assert schedule_batch.Req(logprob_start_len=100)._compute_max_prefix_len(193) == 100
    assert marker.wrapped == "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len"
    assert marker.calls == 6
    once = schedule_batch.Req._compute_max_prefix_len
    retreat.patch(schedule_batch, marker)
    assert schedule_batch.Req._compute_max_prefix_len is once


def test_an_answer_that_is_no_length_is_passed_on_and_told(
    schedule_batch: ModuleType, marker: Marker
) -> None:
    schedule_batch.Req._compute_max_prefix_len = lambda self, input_len: None
    retreat.patch(schedule_batch, marker)
    assert schedule_batch.Req()._compute_max_prefix_len(193) is None
    assert marker.error_count == 1


@dataclass
class Node:
    """A node of the older cache: its state, or None."""

    mamba_value: str | None
    parent: Node | None = None


def chain(*states: str | None) -> list[Node]:
    """The root, then one node for each of `states`, each the child of the one before."""
    nodes = [Node(None)]
    for state in states:
        nodes.append(Node(state, nodes[-1]))
    return nodes


def match(
    nodes: list[Node], length: int, sizes: tuple[int, ...], matched: int, **req: Any
) -> tuple[int, int]:
    """(tokens, nodes) that a match of `matched` nodes keeps for a request of `length` tokens."""
    asked = req or {"full_untruncated_fill_ids": array("q", range(length))}
    params = SimpleNamespace(cow_mamba=True, req=SimpleNamespace(**asked))
    value = [list(range(size)) for size in sizes]
    kept, node, count = retreat.retreat(nodes[0], params, value, nodes[matched], matched)
    assert nodes[count] is node
    assert kept[:count] == value[:count]
    return sum(map(len, kept[:count])), len(kept)


def test_a_one_token_tail_goes_back_to_the_state_before() -> None:
    nodes = chain("a", None, "c")
    assert match(nodes, 193, (64, 64, 64), 3) == (64, 1)
    assert match(nodes, 194, (64, 64, 64), 3) == (192, 3)
    assert match(nodes, 193, (64, 64, 64), 1) == (64, 3), "a long tail is left alone"


def test_without_an_earlier_state_all_is_computed() -> None:
    assert match(chain("a"), 65, (64,), 1) == (0, 0)
    assert match(chain(None, None, "c"), 193, (64, 64, 64), 3) == (0, 0)


def test_tokens_matched_past_the_state_stay_known() -> None:
    assert match(chain("a", "b", None), 129, (64, 64, 64), 2) == (64, 3)


def test_a_length_that_is_not_known_yet_is_left_alone() -> None:
    nodes = chain("a", "b")
    assert match(nodes, 0, (64, 64), 2, full_untruncated_fill_ids=array("q")) == (128, 2)
    assert match(nodes, 0, (64, 64), 2, fill_ids=list(range(129))) == (64, 1)
    assert match(nodes, 0, (64, 64), 2, get_fill_ids=lambda: list(range(129))) == (64, 1)
    assert match(nodes, 0, (64, 64), 2, origin_input_ids=[1]) == (128, 2)


def test_before_the_limit_existed_the_old_cache_is_wrapped_when_it_comes(
    tmp_path: Path, marker: Marker, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sglang" / "srt" / "mem_cache"
    package.mkdir(parents=True)
    (package / "mamba_radix_cache.py").write_text(
        "class MambaRadixCache:\n"
        "    root_node = None\n"
        "    def _match_post_processor(self, params, value, last_node, best_value_len):\n"
        "        return value[:best_value_len], last_node\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    old = ModuleType(retreat.REQUESTS)
    old.Req = type("Req", (), {})  # type: ignore[attr-defined]
    retreat.patch(old, marker)
    assert not marker.active
    assert marker.waits_for == retreat.OLD_CACHE
    try:
        cache = importlib.import_module(retreat.OLD_CACHE).MambaRadixCache()
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]
    assert marker.active
    assert marker.waits_for is None
    assert marker.wrapped == f"{retreat.OLD_CACHE}.MambaRadixCache._match_post_processor"
    nodes = chain("a", "b")
    params = SimpleNamespace(cow_mamba=True, req=SimpleNamespace(fill_ids=[0] * 129))
    value, node = cache._match_post_processor(params, [[0] * 64, [0] * 64], nodes[2], 2)
    assert (len(value), node) == (1, nodes[1])
    unreadable = SimpleNamespace(cow_mamba=True)
    value, node = cache._match_post_processor(unreadable, [[0] * 64, [0] * 64], nodes[2], 2)
    assert (len(value), node) == (2, nodes[2])
    assert (marker.calls, marker.lowered, marker.error_count) == (1, 1, 1)


def test_neither_seam_is_told(marker: Marker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setitem(sys.modules, retreat.OLD_CACHE, ModuleType(retreat.OLD_CACHE))
    old = ModuleType(retreat.REQUESTS)
    old.Req = type("Req", (), {})  # type: ignore[attr-defined]
    retreat.patch(old, marker)
    assert not marker.active
    assert "MambaRadixCache" in marker.errors[0]
