"""Which calls are made for a model."""

from dataclasses import replace

import pytest

from fidelity.errors import UsageError
from fidelity.kernel.cases import cases
from fidelity.model_shapes import find

MODEL = find("Qwen3.6-35B-A3B-FP8")


def test_every_size_at_every_tp() -> None:
    found = cases(MODEL, [], 256)
    assert [case.tp for case in found if case.m == 1] == [1, 2, 4, 8]
    assert [case.m for case in found if case.tp == 1] == [1, 2, 3, 4, 8, 16, 32]
    assert {(case.tp, case.m) for case in found if case.affected} == {
        (1, 1),
        (2, 1),
        (2, 2),
        *[(tp, m) for tp in (4, 8) for m in (1, 2, 3, 4)],
    }


def test_widths_are_padded_to_blocks_as_sglang_does() -> None:
    assert [case.intermediate for case in cases(MODEL, [4, 8], 256) if case.m == 1] == [128, 128]
    flash = find("Qwen3.8-Flash-Next-FP8")
    assert [case.intermediate for case in cases(flash, [2, 4], 256) if case.m == 1] == [384, 256]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"safe_because": "it is bf16"}, "never takes the block-scale kernel: it is bf16"),
        ({"hidden": 2000}, "hidden size 2000 is no multiple of 128"),
        ({"experts": 4}, "top-k 8 of 4 experts"),
        ({"intermediate": 500}, "TP 8 does not divide"),
    ],
)
def test_what_cannot_be_checked_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        cases(replace(MODEL, **change), [8], 256)
    assert says in caught.value.message
