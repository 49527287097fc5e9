"""The torch stand-in as an operator: it runs on any device, and what it shows is never an AMD result."""

import platform
from collections.abc import Sequence
from typing import Any

import torch

from fidelity.kernel import memory, timing
from fidelity.kernel.layer import Batch, Weights, make_batch, make_weights, relative_error, routing
from fidelity.kernel.operator import CannotRunError
from fidelity.kernel.standin import StandIn
from fidelity.kernel.work import Case, Machine


class TorchOperator:
    """See `operator.Operator`."""

    def __init__(self, units: int, device: str = "auto", *, clean: bool = False) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise CannotRunError("torch sees no GPU here", "leave out --device, or give --device cpu")
        self.device, self.clean = device, clean
        self.captured = device == "cuda"
        self.module: Any = StandIn(units, clean=clean)
        self._layer: tuple[Case, int, Weights] | None = None
        self._batches: dict[int, Batch] = {}

    def machine(self) -> Machine:
        name = torch.cuda.get_device_name() if self.captured else f"CPU ({platform.machine()})"
        operator = "torch stand-in" + (" without the fault" if self.clean else "")
        return Machine(operator, name, stand_in=True, versions={"torch": str(torch.__version__)})

    def prepare(self, case: Case, seed: int) -> "Call":
        known = self._layer
        if known is None or known[1] != seed or not _same_layer(known[0], case):
            self._layer = None  # frees the last one first
            self._layer = known = case, seed, make_weights(case, seed, self.device, torch.float8_e4m3fn)
            self._batches.clear()
        if case.m not in self._batches:
            self._batches[case.m] = make_batch(case, known[2], seed, self.device)
        return Call(self, known[2], self._batches[case.m])


class Call:
    """See `operator.Prepared`."""

    def __init__(self, operator: TorchOperator, weights: Weights, batch: Batch) -> None:
        self.operator, self.weights, self.batch = operator, weights, batch
        self.rows = routing(batch.ids)

    def check(self, value: float) -> tuple[float, bool]:
        with memory.filled(value, self.operator.device) as fresh:
            found = self._call()
        return relative_error(found, self.batch.y), fresh.buffers > 0

    def microseconds(self, repeats: int) -> Sequence[float]:
        measure = timing.graph_microseconds if self.operator.captured else timing.cpu_microseconds
        return measure(self._call, repeats)

    def _call(self) -> Any:
        return self.operator.module.fused_moe(
            self.batch.x,
            self.weights.w1,
            self.weights.w2,
            self.batch.gates,
            self.rows,
            self.weights.w1_scale,
            self.weights.w2_scale,
        )


def _same_layer(a: Case, b: Case) -> bool:
    return (a.hidden, a.intermediate, a.topk, a.experts) == (b.hidden, b.intermediate, b.topk, b.experts)
