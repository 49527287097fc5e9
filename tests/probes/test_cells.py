from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.engines.facts import ServerFacts
from fidelity.errors import PlanError
from fidelity.plan_probes import Resend
from fidelity.probes.cells import Cell, HitPlan, choose_cells, choose_tails, plan_hit

FACTS = ServerFacts(engine="sglang", version="0.5.21", model="m")


def tails(resend: Resend, region: int | None) -> tuple[set[int], set[int]]:
    kinds, _ = choose_tails(resend, replace(FACTS, fault_region=region))
    suspects = {tail for tail, kind in kinds.items() if kind == "suspect"}
    return suspects, set(kinds) - suspects


@pytest.mark.parametrize(
    ("region", "suspects", "controls"),
    [
        (None, {1, 2, 3, 4}, {33}),
        (0, {1}, {2, 33}),
        (1, {1}, {2, 33}),
        (2, {1, 2}, {3, 33}),
        (4, {1, 2, 3, 4}, {5, 33}),
    ],
)
def test_suspects_reach_to_the_fault_region_and_the_control_is_next(
    region: int | None, suspects: set[int], controls: set[int]
) -> None:
    assert tails(Resend(), region) == (suspects, controls)


def test_a_tail_named_as_both_is_a_suspect() -> None:
    assert tails(Resend(suspects=(1, 33), controls=(33, 40)), None) == ({1, 33}, {40})


@pytest.mark.parametrize(
    ("given", "region", "words"),
    [
        (Resend(), None, "not known"),
        (Resend(), 0, "no affected batch size"),
        (Resend(), 2, "affected up to M = 2"),
        (Resend(suspects=(1,)), 2, "given in the plan"),
    ],
)
def test_the_reason_is_told(given: Resend, region: int | None, words: str) -> None:
    _, why = choose_tails(given, replace(FACTS, fault_region=region))
    assert words in why
    assert all(cell.why == why for cell in choose_cells(given, replace(FACTS, fault_region=region)))


def test_the_default_cells_resume_from_the_threads_position() -> None:
    cells = choose_cells(Resend(), replace(FACTS, fault_region=None))
    assert [cell.length for cell in cells] == [193, 194, 195, 196, 225]
    assert {cell.position for cell in cells} == {192}
    assert cells[0] == Cell("L=193 tail=1", "suspect", 193, 1, cells[0].why)
    assert [cell.kind for cell in cells] == ["suspect"] * 4 + ["control"]


def test_a_coarser_grid_moves_the_position_up() -> None:
    cells = choose_cells(Resend(suspects=(1,), controls=(33,)), replace(FACTS, grid=128))
    assert [(cell.length, cell.position) for cell in cells] == [(257, 256), (289, 256)]


def test_lengths_give_their_own_tails() -> None:
    given = Resend(lengths=(193, 194, 256, 705))
    cells = choose_cells(given, replace(FACTS, fault_region=1))
    assert [(cell.length, cell.tail, cell.kind) for cell in cells] == [
        (193, 1, "suspect"),
        (194, 2, "control"),
        (256, 64, "control"),
        (705, 1, "suspect"),
    ]


def test_several_positions_and_no_cell_twice() -> None:
    cells = choose_cells(Resend(suspects=(1,), controls=(65,), positions=(64, 128, 128)), FACTS)
    # 64 + 65 is 129 from position 64; 128 + 1 is 129 from position 128: two conditions.
    assert [(cell.length, cell.tail) for cell in cells] == [(65, 1), (129, 1), (129, 65), (193, 65)]


@pytest.mark.parametrize("position", [0, 100, -64])
def test_a_position_off_the_grid_is_refused(position: int) -> None:
    with pytest.raises(PlanError, match=rf"position {position} is no checkpoint .*grid 64") as caught:
        choose_cells(Resend(positions=(position,)), FACTS)
    assert caught.value.hint == "give multiples of 64"


@pytest.mark.parametrize("length", [1, 64])
def test_a_length_without_a_checkpoint_is_refused(length: int) -> None:
    with pytest.raises(PlanError, match=f"a prompt of {length} tokens is never served") as caught:
        choose_cells(Resend(lengths=(length, 193)), FACTS)
    assert "65" in (caught.value.hint or "")


def cell(length: int, tail: int) -> Cell:
    return Cell(f"L={length} tail={tail}", "suspect", length, tail, "")


@pytest.mark.parametrize(
    ("length", "tail", "strategy", "min_tail", "plan"),
    [
        (193, 1, "extra_buffer", 1, HitPlan(193, 0, own_namespace=False, reachable=True)),
        (225, 33, "extra_buffer", 1, HitPlan(225, 0, own_namespace=False, reachable=True)),
        # On the grid the first re-send misses and leaves the checkpoint that the second one hits.
        (192, 64, "extra_buffer", 1, HitPlan(192, 1, own_namespace=False, reachable=True)),
        (193, 1, "extra_buffer", 2, HitPlan(193, 0, own_namespace=False, reachable=False)),
        (194, 2, "extra_buffer", 2, HitPlan(194, 0, own_namespace=False, reachable=True)),
        (193, 65, "extra_buffer", 2, HitPlan(193, 1, own_namespace=False, reachable=True)),
        (193, 1, "no_buffer", 1, HitPlan(193, 0, own_namespace=False, reachable=False)),
        (193, 1, "attention only", 1, HitPlan(193, 0, own_namespace=False, reachable=True)),
        # Past the natural tail a shorter seed leaves the checkpoint, and a longer prompt resumes there.
        (257, 65, "extra_buffer", 1, HitPlan(193, 0, own_namespace=True, reachable=True)),
        (289, 97, "extra_buffer", 1, HitPlan(193, 0, own_namespace=True, reachable=True)),
        (258, 66, "extra_buffer", 2, HitPlan(193, 0, own_namespace=True, reachable=True)),
        # An attention-only cache serves as much as it can: a longer tail needs a seed that ends there.
        (257, 65, "attention only", 1, HitPlan(192, 0, own_namespace=True, reachable=True)),
    ],
)
def test_the_shortest_way_to_a_hit(
    length: int, tail: int, strategy: str, min_tail: int, plan: HitPlan
) -> None:
    assert plan_hit(cell(length, tail), replace(FACTS, strategy=strategy), min_tail) == plan


@given(
    multiple=st.integers(1, 5),
    tail=st.integers(1, 200),
    grid=st.sampled_from([4, 64, 128]),
    strategy=st.sampled_from(["extra_buffer", "attention only"]),
    min_tail=st.integers(1, 2),
)
def test_the_way_leads_there_in_a_cache_that_walks_the_tokens(
    multiple: int, tail: int, grid: int, strategy: str, min_tail: int, token_cache: Any
) -> None:
    wanted = cell(multiple * grid + tail, tail)
    how = plan_hit(wanted, replace(FACTS, grid=grid, strategy=strategy), min_tail)
    assert how.reachable is (tail >= min_tail)
    if not how.reachable:
        return
    text = tuple(range(wanted.length))
    cache = token_cache(grid, strategy, min_tail)
    if not how.own_namespace:
        cache.send(text)
    for _ in range(1 if how.own_namespace else how.primes):
        cache.send(text[: how.seed_length])
    assert cache.send(text) == wanted.position
