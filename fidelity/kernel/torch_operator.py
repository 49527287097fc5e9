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
        self._weights: tuple[Case, int, Weights] | None = None

    def machine(self) -> Machine:
        name = torch.cuda.get_device_name() if self.captured else f"CPU ({platform.machine()})"
        operator = "torch stand-in" + (" without the fault" if self.clean else "")
        return Machine(operator, name, stand_in=True, versions={"torch": str(torch.__version__)})

    def prepare(self, case: Case, seed: int) -> "Call":
        known = self._weights
        if known is None or known[1] != seed or not _same_layer(known[0], case):
            self._weights = None  # frees the last one first
            self._weights = known = case, seed, make_weights(case, seed, self.device, torch.float8_e4m3fn)
        return Call(self, known[2], make_batch(case, known[2], seed, self.device))

    def prefill(self, case: Case, value: float) -> bool:
        shape = (case.m, case.topk, 2 * case.intermediate)
        if self.device == "cpu":
            self.module.pool.clear()
            self.module.give_back(torch.full(shape, value))
        else:
            memory.fill_free_memory(value, self.device)
        buffer = self.module.empty(shape, torch.device(self.device))
        found = memory.holds(buffer, value)
        self.module.give_back(buffer)
        return found


class Call:
    """See `operator.Prepared`."""

    def __init__(self, operator: TorchOperator, weights: Weights, batch: Batch) -> None:
        self.operator, self.weights, self.batch = operator, weights, batch
        self.rows = routing(batch.ids)

    def error(self) -> float:
        return relative_error(self._call(), self.batch.y)

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
