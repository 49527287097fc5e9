"""The torch stand-in at every model's real shapes: `pytest -m kernel`, on the CPU or on any GPU."""

from pathlib import Path
from typing import Any

import pytest

from fidelity.kernel.cases import cases
from fidelity.kernel.harness import run
from fidelity.kernel.operator import operator_for
from fidelity.kernel.verdict import judge
from fidelity.kernel.work import Check, Work
from fidelity.model_shapes import MoeShape, find

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(900)]
ROWS = {
    "Qwen3.6-35B-A3B-FP8": {1: 1, 2: 2, 4: 4, 8: 4},
    "Qwen3.5-397B-A17B-FP8": {1: 0, 2: 0, 4: 0, 8: 1},
    "Qwen3.8-Flash-Next-FP8": {1: 0, 2: 0, 4: 1, 8: 2},
}
"""TP -> the largest affected M, from the second thread."""
SMALL = MoeShape("small", hidden=1024, intermediate=256, topk=2, experts=16)


def work(model: MoeShape, tps: list[int], units: int = 256, **given: Any) -> Work:
    base = {
        "model": model.model,
        "backend": "torch",
        "units": units,
        "guards": ("none", "splitk"),
        "repeats": 0,
    }
    return Work(**base | {"cases": tuple(cases(model, tps, units))} | given)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", ROWS)
def test_the_single_tile_calls_and_no_other(model: str, tp: int, tmp_path: Path) -> None:
    asked = work(find(model), [tp])
    answers = list(run(asked, operator_for(asked), tmp_path))
    checks = [answer for answer in answers if isinstance(answer, Check)]
    for fill in ("nan", "large"):
        before = {c.m: c.error for c in checks if (c.guard, c.fill) == ("none", fill)}
        wrong = [m for m, error in before.items() if not error <= asked.tolerance]
        assert wrong == [m for m in (1, 2, 3, 4, 8, 16, 32) if m <= ROWS[model][tp]]
        after = [c.error for c in checks if (c.guard, c.fill) == ("splitk", fill)]
        assert len(after) == 7
        assert max(after) < asked.tolerance
    assert all(check.filled for check in checks)
    verdict = judge(asked, answers)
    assert verdict.exit_code == (10 if ROWS[model][tp] else 0)
    assert verdict.guards[1].state == "pass"
    assert "not an AMD result" in verdict.label


@pytest.mark.parametrize("guards", [("none",), ("unsplit",)])
def test_a_clean_operator_and_an_unsplit_one_pass(guards: tuple[str, ...], tmp_path: Path) -> None:
    backend = "torch-clean" if guards == ("none",) else "torch"
    asked = work(SMALL, [1, 2], 16, guards=guards, backend=backend)
    verdict = judge(asked, list(run(asked, operator_for(asked), tmp_path)))
    assert (verdict.state, verdict.exit_code) == ("pass", 0)


def test_fp8_rounding_is_far_from_the_tolerance_on_both_sides(tmp_path: Path) -> None:
    asked = work(SMALL, [1], 16)
    answers = list(run(asked, operator_for(asked), tmp_path))
    right = [a.error for a in answers if isinstance(a, Check) and a.guard == "splitk"]
    assert 0.01 < max(right) < asked.tolerance / 1.5
    stale = [
        a.error for a in answers if isinstance(a, Check) and (a.guard, a.m, a.fill) == ("none", 1, "large")
    ]
    assert stale[0] > 100


def test_the_same_seed_gives_the_same_layer() -> None:
    import torch

    from fidelity.kernel.layer import make_batch, make_weights

    (case,) = cases(SMALL, [1], 16, sizes=[4])
    first, second = (make_weights(case, 3, "cpu", torch.float8_e4m3fn) for _ in range(2))
    assert torch.equal(first.used, second.used)
    batches = [make_batch(case, weights, 3, "cpu") for weights in (first, second)]
    assert torch.equal(batches[0].y, batches[1].y)
    assert not torch.isnan(batches[0].y).any()
    assert not torch.equal(batches[0].y, make_batch(case, first, 4, "cpu").y)


def test_new_memory_is_filled_for_a_while() -> None:
    import torch

    from fidelity.kernel.memory import filled

    plain = torch.empty
    with filled(3e4, "cpu") as fresh:
        assert (torch.empty(4, dtype=torch.bfloat16) == 3e4).all()
        assert (torch.empty((2, 3)) == 3e4).all()
        torch.empty(3, dtype=torch.int32)
        torch.zeros(3)
    assert fresh.buffers == 2
    assert torch.empty is plain


def test_every_call_is_timed(tmp_path: Path) -> None:
    asked = work(SMALL, [1], 16, repeats=2)
    timings = judge(asked, list(run(asked, operator_for(asked), tmp_path))).timings
    assert [timing.guard for timing in timings] == ["none", "unsplit", "splitk"]
    assert all(0 < timing.least <= timing.median <= timing.most for timing in timings)
