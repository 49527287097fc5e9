"""The call of aiter, against a module with aiter's names whose work the stand-in does: `pytest -m kernel`."""

import enum
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fidelity.kernel.cases import cases
from fidelity.kernel.harness import run
from fidelity.kernel.verdict import judge
from fidelity.kernel.work import Machine, Work
from fidelity.model_shapes import MoeShape

pytestmark = pytest.mark.kernel
SMALL = MoeShape("small", hidden=1024, intermediate=256, topk=2, experts=16)
QuantType = enum.Enum("QuantType", ["per_1x128", "per_128x128"])


@pytest.fixture
def aiter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its `fused_moe` takes what aiter's takes, and refuses anything else."""
    import torch

    from fidelity.kernel.layer import routing
    from fidelity.kernel.standin import StandIn

    class FusedMoe(StandIn):
        def fused_moe(  # type: ignore[override]
            self,
            hidden_states: Any,
            w1: Any,
            w2: Any,
            topk_weight: Any,
            topk_ids: Any,
            activation: Any,
            quant_type: Any,
            w1_scale: Any,
            w2_scale: Any,
        ) -> Any:
            assert (hidden_states.dtype, topk_weight.dtype) == (torch.bfloat16, torch.float32)
            assert (topk_ids.dtype, activation, quant_type) == (torch.int32, "silu", QuantType.per_128x128)
            assert w1.is_shuffled
            assert w2.is_shuffled
            rows = routing(topk_ids)
            y = super().fused_moe(hidden_states, w1, w2, topk_weight, rows, w1_scale, w2_scale)
            return y.to(torch.bfloat16)

        def get_cu_num(self) -> int:
            return self.units

    def shuffle_weight(weight: Any, layout: tuple[int, int]) -> Any:
        assert layout == (16, 16)
        shuffled = weight.clone()
        shuffled.is_shuffled = True
        return shuffled

    package = SimpleNamespace(
        QuantType=QuantType,
        ActivationType=SimpleNamespace(Silu="silu"),
        dtypes=SimpleNamespace(fp8=torch.float8_e4m3fn),
    )
    monkeypatch.setitem(sys.modules, "aiter", package)
    monkeypatch.setitem(sys.modules, "aiter.fused_moe", FusedMoe(16))
    monkeypatch.setitem(sys.modules, "aiter.ops", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "aiter.ops.shuffle", SimpleNamespace(shuffle_weight=shuffle_weight))
    return package


def test_aiter_is_called_as_sglang_calls_it(aiter: Any, tmp_path: Path) -> None:
    from fidelity.kernel.aiter_operator import AiterOperator

    work = Work("small", "aiter", 16, tuple(cases(SMALL, [1, 2], 16)), ("none", "splitk"), repeats=2)
    answers = list(run(work, AiterOperator("cpu"), tmp_path))
    verdict = judge(work, answers)
    assert verdict.reason == "guard none: wrong at TP1 M 1; TP2 M 1, 2, of 14 calls"
    assert verdict.guards[1].state == "pass"
    machine = answers[0]
    assert isinstance(machine, Machine)
    assert (machine.operator, machine.stand_in, machine.compute_units) == ("aiter fused_moe", False, 16)
    assert "SIMULATED" not in verdict.label
    assert len(verdict.timings) == 3 + 6


def test_without_a_gpu_it_cannot_run(aiter: Any) -> None:
    import torch

    from fidelity.kernel.aiter_operator import AiterOperator
    from fidelity.kernel.operator import CannotRunError

    if torch.cuda.is_available():
        assert AiterOperator().captured
    else:
        with pytest.raises(CannotRunError, match="sees no GPU"):
            AiterOperator()
