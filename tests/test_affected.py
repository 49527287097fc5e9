"""The second thread's table, and the tails that follow from it."""

import json

import pytest

from fidelity.affected import Table, assumptions, table
from fidelity.errors import PlanError, UsageError
from fidelity.gpus import GPUS, gpu
from fidelity.model_shapes import MoeShape, find
from fidelity.report import affected as render

MODEL = "Qwen3.6-35B-A3B-FP8"
BIG = "Qwen3.5-397B-A17B-FP8"
FLASH = "Qwen3.8-Flash-Next-FP8"


def largest(model: str, name: str, sglang: str | None = None) -> tuple[int, ...]:
    return tuple(row.largest for row in table(find(model), gpu(name), sglang=sglang).rows)


@pytest.mark.parametrize("name", ["mi350x", "mi355x"])
@pytest.mark.parametrize(
    ("model", "expected"), [(MODEL, (1, 2, 4, 4)), (BIG, (0, 0, 0, 1)), (FLASH, (0, 0, 1, 2))]
)
def test_the_second_threads_rows(model: str, expected: tuple[int, ...], name: str) -> None:
    found = table(find(model), gpu(name))
    assert [row.tp for row in found.rows] == [1, 2, 4, 8]
    assert largest(model, name) == expected
    assert all(row.fused in (None, row.apart) for row in found.rows)


@pytest.mark.parametrize(
    ("model", "name", "apart", "fused"),
    [
        (MODEL, "mi300x", (1, 2, 4, 4), (1, 2, 4, 4)),
        (BIG, "mi300x", (0, 0, 1, 2), (0, 0, 0, 1)),
        (FLASH, "mi300x", (0, 1, 1, 2), (None, None, None, None)),
        (MODEL, "mi308x", (0, 0, 1, 1), (0, 0, 1, 1)),
    ],
)
def test_other_gpus(model: str, name: str, apart: tuple[int, ...], fused: tuple[int | None, ...]) -> None:
    rows = table(find(model), gpu(name)).rows
    assert tuple(row.apart for row in rows) == apart
    assert tuple(row.fused for row in rows) == fused
    assert tuple(row.largest for row in rows) == apart


@pytest.mark.parametrize(("sglang", "row"), [(None, 1), ("0.5.21", 1), ("0.5.22", 0), ("0.5.23.post1", 0)])
def test_from_0_5_22_the_397b_goes_elsewhere_on_gfx950(sglang: str | None, row: int) -> None:
    assert largest(BIG, "mi350x", sglang) == (0, 0, 0, row)
    assert largest(BIG, "mi300x", sglang) == (0, 0, 1, 2)  # gfx942 has no such kernel
    assert largest(MODEL, "mi350x", sglang) == (1, 2, 4, 4)  # nor do other shapes


def test_suspects_and_controls() -> None:
    rows = {row.tp: row for row in table(find(MODEL), gpu("mi350x")).rows}
    assert (rows[1].suspects, rows[1].controls) == ((1,), (2, 33))
    assert (rows[4].suspects, rows[4].controls) == ((1, 2, 3, 4), (5, 33))
    big = table(find(BIG), gpu("mi350x")).rows[0]
    assert (big.suspects, big.controls) == ((1,), (2, 33))


def test_fewer_compute_units_are_a_partition() -> None:
    found = table(find(MODEL), gpu("mi300x"), units=38, tps=[1, 8])
    assert [row.largest for row in found.rows] == [0, 0]
    assert found.units == 38


def test_splits_are_told_for_each_padded_batch() -> None:
    (row,) = table(find(MODEL), gpu("mi350x"), tps=[2]).rows
    assert [(one.m, one.splits, one.tiles, one.safe) for one in row.splits] == [
        (1, 8, 1, 4),
        (2, 8, 1, 4),
        (4, 4, 2, 4),
        (8, 2, 4, 2),
        (16, 0, 8, 0),
        (32, 0, 8, 0),
    ]


def test_a_tp_that_does_not_divide_is_left_out_and_refused_when_asked_for() -> None:
    odd = MoeShape("odd", 2048, 1536 + 256, 8, 64)
    assert [row.tp for row in table(odd, gpu("mi350x")).rows] == [1, 2, 4, 8]
    odd = MoeShape("odd", 2048, 510, 8, 64)
    assert [row.tp for row in table(odd, gpu("mi350x")).rows] == [1, 2]
    with pytest.raises(UsageError, match="TP 4 does not divide"):
        table(odd, gpu("mi350x"), tps=[4])


def test_a_checkpoint_that_is_not_block_scaled_has_no_rows() -> None:
    safe = MoeShape("bf16", 2048, 512, 8, 256, safe_because="the checkpoint is not quantised")
    found = table(safe, gpu("mi350x"))
    assert found.rows == ()
    assert "Not affected at any TP: the checkpoint is not quantised." in render.as_text(found)
    assert "| --- |" not in render.as_markdown(found)
    with pytest.raises(UsageError):
        table(safe, gpu("mi350x"), tps=[3])


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="no GPU 'mi350'") as caught:
        gpu("mi350")
    assert "did you mean 'mi350x'?" in (caught.value.hint or "")
    assert gpu("MI300X") == GPUS["mi300x"]


def flash() -> Table:
    return table(find(FLASH), gpu("mi350x"), ep=2, tps=[4])


def test_what_is_assumed_is_said() -> None:
    assert any("default heuristic on 256 compute units" in line for line in assumptions(flash()))
    assert any("not confirmed by a public source: num_experts" in line for line in assumptions(flash()))
    assert any("EP 2 " in line for line in assumptions(flash()))
    assert any("no --sglang version" in line for line in assumptions(flash()))
    old = table(find(MODEL), gpu("mi350x"), sglang="0.5.16")
    assert any("0.5.16 guards these calls itself" in line for line in assumptions(old))
    assert not any("no --sglang" in line for line in assumptions(old))
    new = table(find(BIG), gpu("mi350x"), sglang="0.5.22")
    assert any("SGLANG_ROCM_SMALLM_MOE" in line for line in assumptions(new))
    assert any("changes no row" in line for line in assumptions(new))
    other = table(find(BIG), gpu("mi300x"))
    assert any("changes the rows of TP 4, 8" in line for line in assumptions(other))


def test_text_and_markdown_show_the_same_rows() -> None:
    found = table(find(MODEL), gpu("mi350x"), sglang="0.5.21")
    text, markdown = render.as_text(found), render.as_markdown(found)
    line = next(line for line in text.splitlines() if line.startswith("2 "))
    words = ["2", "256", "<= 2", "M 1: 8 -> 4; M 2: 8 -> 4", "1, 2", "3, 33"]
    assert [part.strip() for part in line.split("  ") if part.strip()] == words
    assert f"| {' | '.join(words)} |" in markdown
    assert "ksplit" in text
    assert "ksplit" in markdown
    assert text.isascii()


def test_a_row_that_goes_elsewhere_says_so() -> None:
    text = render.as_text(table(find(BIG), gpu("mi350x"), sglang="0.5.22"))
    assert "- (another kernel)" in text
    assert "TP 8: sglang 0.5.22 sends up to 48 tokens" in text


def test_json_holds_everything() -> None:
    data = json.loads(render.as_json(table(find(MODEL), gpu("mi350x"))))
    assert [row["largest"] for row in data["rows"]] == [1, 2, 4, 4]
    assert data["rows"][0]["splits"][0] == {"m": 1, "splits": 8, "tiles": 1, "affected": True, "safe": 4}
    assert data["model"]["hidden"] == 2048
    assert data["assumptions"]
    assert "ksplit" in data["check"]
