"""The harness with an operator in NumPy: what it calls wrong, and what guards change."""

import math
from pathlib import Path
from typing import Any

import pytest

from fidelity.kernel.guarding import guarded
from fidelity.kernel.harness import run
from fidelity.kernel.work import Check, Done, GuardProof, Machine, Timing


def checks(answers: list[Any], guard: str, fill: str) -> dict[tuple[int, int], float]:
    return {
        (a.tp, a.m): a.error for a in answers if isinstance(a, Check) and (a.guard, a.fill) == (guard, fill)
    }


@pytest.mark.parametrize("fill", ["nan", "large"])
def test_the_single_tile_calls_are_wrong_and_no_other(
    fill: str, work: Any, numpy_operator: Any, tmp_path: Path
) -> None:
    asked = work()
    assert {(case.tp, case.m) for case in asked.cases if case.affected} == {(1, 1), (2, 1), (2, 2)}
    answers = list(run(asked, numpy_operator(), tmp_path))
    before = checks(answers, "none", fill)
    assert len(before) == 14
    assert {place for place, error in before.items() if not error <= 0.1} == {(1, 1), (2, 1), (2, 2)}
    if fill == "nan":
        assert math.isnan(before[1, 1])
    after = checks(answers, "splitk", fill)
    assert all(error < 1e-9 for error in after.values())
    assert len(after) == 14


def test_a_clean_operator_is_right_everywhere(work: Any, numpy_operator: Any, tmp_path: Path) -> None:
    answers = list(run(work(), numpy_operator(clean=True), tmp_path))
    found = [answer for answer in answers if isinstance(answer, Check)]
    assert len(found) == 2 * 2 * 14
    assert max(answer.error for answer in found) < 1e-9
    assert all(answer.filled for answer in found)


def test_answers_come_in_order_and_end_with_done(work: Any, numpy_operator: Any, tmp_path: Path) -> None:
    answers = list(run(work(), numpy_operator(), tmp_path))
    assert isinstance(answers[0], Machine)
    assert isinstance(answers[-1], Done)
    proofs = [answer for answer in answers if isinstance(answer, GuardProof)]
    assert [proof.guard for proof in proofs] == ["splitk"]
    assert proofs[0].lowered > 0
    assert proofs[0].shapes["M=1 K=1024 block_m=16 kernel=default splitk=4->2"] > 0
    assert not proofs[0].errors
    assert (tmp_path / "kernel-splitk").is_dir()


def test_each_affected_call_is_timed_three_ways(work: Any, numpy_operator: Any, tmp_path: Path) -> None:
    operator = numpy_operator()
    answers = list(run(work(), operator, tmp_path))
    timed = [(a.tp, a.m, a.guard) for a in answers if isinstance(a, Timing)]
    assert timed == [
        *[(1, 1, guard) for guard in ("none", "unsplit", "splitk")],
        *[(2, m, guard) for guard in ("none", "unsplit", "splitk") for m in (1, 2)],
    ]
    timing = next(a for a in answers if isinstance(a, Timing))
    assert (timing.median, timing.least, timing.most, timing.captured) == (2.0, 1.0, 3.0, False)
    assert not [a for a in run(work(repeats=0), operator, tmp_path) if isinstance(a, Timing)]


def test_the_splits_under_each_guard(work: Any, numpy_operator: Any, tmp_path: Path) -> None:
    def splits(guard: str) -> set[int]:
        operator = numpy_operator()
        list(run(work(guards=(guard,), repeats=0), operator, tmp_path))
        return {split for m, split in operator.calls if m == 1}

    assert (splits("none"), splits("splitk"), splits("unsplit")) == ({4}, {2}, {1})


def test_a_guard_is_taken_off_again(numpy_operator: Any, tmp_path: Path) -> None:
    from fidelity.guards.inserver.marker import Marker

    operator = numpy_operator()
    before = operator.module.ck_moe_stage1
    with guarded(operator.module, Marker("splitk", tmp_path)):
        assert operator.module.ck_moe_stage1 is not before
    assert operator.module.ck_moe_stage1 is before
    assert operator.module.get_2stage_cfgs.cache_info().currsize == 0
    with guarded(operator.module, Marker("none", tmp_path)):
        assert operator.module.ck_moe_stage1 is before
    with pytest.raises(RuntimeError), guarded(operator.module, Marker("unsplit", tmp_path)):
        raise RuntimeError
    assert operator.module.ck_moe_stage1 is before
