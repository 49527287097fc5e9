"""The closed form against a literal port of aiter's heuristic and kernel choice; the threads' table."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.shapes import affected, largest_affected, split_of

CU = 256  # MI350X and MI355X


def split_of_k(m: int, hidden: int, intermediate: int, topk: int, experts: int, cu: int, tile: int) -> int:
    """aiter's default split of K for a batch of m, step by step; 0 is unsplit."""
    padded = 1
    while padded < m:
        padded *= 2
    if padded * topk > experts:
        return 0
    groups = padded * topk * ((intermediate + 127) // 128)
    if groups >= cu:
        return 0
    most = (cu + groups - 1) // groups
    for split in range(most, 1, -1):
        if hidden % split == 0 and (hidden // split) % tile == 0:
            return split
    return 0


def one_tile_per_split(
    m: int, hidden: int, intermediate: int, topk: int, experts: int, cu: int, tile: int
) -> bool:
    padded = 1 << (m - 1).bit_length()
    if padded > 32:  # the one-stage kernel, which does not split
        return False
    split = split_of_k(m, hidden, intermediate, topk, experts, cu, tile)
    return split >= 2 and hidden == split * tile


shapes = st.fixed_dictionaries(
    {
        "m": st.integers(1, 40),
        "intermediate": st.integers(1, 1024),
        "topk": st.integers(1, 12),
        "experts": st.sampled_from([8, 64, 128, 256, 512]),
        "cu": st.integers(1, 320),
        "tile": st.sampled_from([16, 128, 256]),
        "tiles": st.integers(1, 40),
        "more": st.sampled_from([0, 0, 0, 8, 64]),
    }
)


@given(shapes)
def test_equal_to_the_literal_heuristic(shape: dict[str, int]) -> None:
    hidden = shape["tiles"] * shape["tile"] + shape["more"]
    literal = one_tile_per_split(
        shape["m"], hidden, shape["intermediate"], shape["topk"], shape["experts"], shape["cu"], shape["tile"]
    )
    closed = affected(
        shape["m"],
        hidden=hidden,
        intermediate=shape["intermediate"],
        topk=shape["topk"],
        experts=shape["experts"],
        compute_units=shape["cu"],
        tile=shape["tile"],
    )
    assert closed == literal


def test_equal_to_the_literal_heuristic_on_every_common_shape() -> None:
    compared = hits = 0
    for hidden in (512, 2048, 2560, 3072, 4096):
        for intermediate in (64, 128, 160, 256, 512, 640, 1024):
            for topk, experts in ((8, 256), (10, 512), (2, 8)):
                for cu in (80, 256, 304):
                    for m in range(1, 34):
                        literal = one_tile_per_split(m, hidden, intermediate, topk, experts, cu, 256)
                        closed = affected(
                            m,
                            hidden=hidden,
                            intermediate=intermediate,
                            topk=topk,
                            experts=experts,
                            compute_units=cu,
                            tile=256,
                        )
                        assert closed == literal, (m, hidden, intermediate, topk, experts, cu)
                        compared, hits = compared + 1, hits + literal
    assert compared == 10_395
    assert hits > 100  # both answers occur


@pytest.mark.parametrize(
    ("hidden", "total", "topk", "experts", "row"),
    [
        pytest.param(2048, 512, 8, 256, (1, 2, 4, 4), id="Qwen3.6-35B-A3B"),
        pytest.param(4096, 1024, 10, 512, (0, 0, 0, 1), id="Qwen3.5-397B-A17B"),
        pytest.param(2560, 640, 10, 512, (0, 0, 1, 2), id="Qwen3.8-Flash-Next"),
    ],
)
def test_the_threads_table(hidden: int, total: int, topk: int, experts: int, row: tuple[int, ...]) -> None:
    found = tuple(
        largest_affected(
            hidden=hidden, intermediate=total // tp, topk=topk, experts=experts, compute_units=CU, tile=256
        )
        for tp in (1, 2, 4, 8)
    )
    assert found == row


def test_more_than_32_tokens_run_unsplit() -> None:
    shape = {"hidden": 512, "intermediate": 128, "topk": 1, "experts": 64, "compute_units": 256, "tile": 256}
    assert affected(32, **shape)
    assert not affected(33, **shape)


@pytest.mark.parametrize(("cu", "largest"), [(16, 1), (32, 2), (64, 4)])
def test_the_embedded_engine_has_the_same_pattern(cu: int, largest: int) -> None:
    shape = {"hidden": 128, "intermediate": 64, "topk": 2, "experts": 8, "tile": 16}
    assert largest_affected(**shape, compute_units=cu) == largest


@given(shapes)
def test_affected_sizes_start_at_one_without_a_gap(shape: dict[str, int]) -> None:
    given_shape = {
        "hidden": shape["tiles"] * shape["tile"],
        "intermediate": shape["intermediate"],
        "topk": shape["topk"],
        "experts": shape["experts"],
        "compute_units": shape["cu"],
        "tile": shape["tile"],
    }
    sizes = [m for m in range(1, 33) if affected(m, **given_shape)]
    assert sizes == list(range(1, len(sizes) + 1))
    assert largest_affected(**given_shape) == len(sizes)


@given(shapes)
def test_the_split_is_the_literal_heuristics(shape: dict[str, int]) -> None:
    hidden = shape["tiles"] * shape["tile"] + shape["more"]
    dims = (hidden, shape["intermediate"], shape["topk"], shape["experts"], shape["cu"], shape["tile"])
    literal = split_of_k(shape["m"], *dims) if shape["m"] <= 32 else 0
    found = split_of(
        shape["m"],
        hidden=hidden,
        intermediate=shape["intermediate"],
        topk=shape["topk"],
        experts=shape["experts"],
        compute_units=shape["cu"],
        tile=shape["tile"],
    )
    assert found.splits == literal
    assert found.affected == one_tile_per_split(shape["m"], *dims)
    if literal:
        assert found.tiles * literal * shape["tile"] == hidden
        assert found.safe <= literal
        assert found.safe == 1 or hidden // (found.safe * shape["tile"]) >= 2
        assert hidden % (found.safe * shape["tile"]) == 0


@given(shapes)
def test_a_fused_shared_expert_never_widens_the_region(shape: dict[str, int]) -> None:
    dims = {"hidden": shape["tiles"] * shape["tile"], "intermediate": shape["intermediate"]}
    more = {"compute_units": shape["cu"], "tile": shape["tile"]}
    apart = largest_affected(**dims, topk=shape["topk"], experts=shape["experts"], **more)
    fused = largest_affected(**dims, topk=shape["topk"] + 1, experts=shape["experts"] + 1, **more)
    assert fused <= apart


@pytest.mark.parametrize(
    ("hidden", "intermediate", "topk", "splits", "safe"),
    [(2048, 512, 8, 8, 4), (4096, 128, 10, 16, 8), (2560, 160, 10, 10, 5), (3072, 128, 8, 12, 6)],
)
def test_the_safe_split_of_each_model(
    hidden: int, intermediate: int, topk: int, splits: int, safe: int
) -> None:
    shape = {"hidden": hidden, "intermediate": intermediate, "topk": topk, "experts": 512}
    found = split_of(1, **shape, compute_units=CU)
    assert (found.splits, found.tiles, found.affected, found.safe) == (splits, 1, True, safe)


def compare(combinations: Iterator[tuple[int, ...]]) -> tuple[int, int]:
    """(compared, affected); fails at the first combination where product and port differ."""
    compared = hits = 0
    for m, hidden, intermediate, topk, experts, cu in combinations:
        dims = (m, hidden, intermediate, topk, experts, cu, 256)
        literal = one_tile_per_split(*dims)
        shape = {"hidden": hidden, "intermediate": intermediate, "topk": topk, "experts": experts}
        assert affected(m, **shape, compute_units=cu) == literal, dims
        assert split_of(m, **shape, compute_units=cu).splits == (split_of_k(*dims) if m <= 32 else 0), dims
        compared, hits = compared + 1, hits + literal
    return compared, hits


BATCHES = (1, 2, 3, 4, 5, 8, 12, 16, 31, 32, 33)
DEPTHS = tuple(range(256, 8193, 256))
WIDTHS = (32, 64, 80, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536)
CHOICES = ((1, 16), (2, 8), (2, 16), (4, 60), (4, 64), (6, 64), (8, 128), (8, 256), (9, 257), (10, 512))
UNITS = (16, 38, 64, 80, 104, 110, 120, 128, 152, 192, 208, 228, 256, 264, 304, 320, 512, 608, 1024, 1216, 77)


def combinations() -> Iterator[tuple[int, ...]]:
    for m, hidden, intermediate, choice, cu in itertools.product(BATCHES, DEPTHS, WIDTHS, CHOICES, UNITS):
        yield m, hidden, intermediate, *choice, cu


def test_equal_to_the_literal_heuristic_on_a_sample_of_them() -> None:
    compared, hits = compare(itertools.islice(combinations(), 0, None, 47))
    assert compared == 22_019
    assert hits > 500


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_equal_to_the_literal_heuristic_over_a_million_combinations() -> None:
    compared, hits = compare(combinations())
    assert compared == 1_034_880
    assert hits > 10_000
