"""aiter's own `fused_moe`, called as sglang calls it for an fp8 block-scale checkpoint."""

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import torch

from fidelity.kernel import memory, timing
from fidelity.kernel.layer import Batch, Weights, make_batch, make_weights, relative_error
from fidelity.kernel.operator import CannotRunError
from fidelity.kernel.work import Case, Machine

WAYS_ON = (
    "give --image a ROCm image of sglang, run there yourself, or try the harness on the torch stand-in with "
    "--backend torch (never an AMD result)"
)


class AiterOperator:
    """See `operator.Operator`. Raises CannotRunError where aiter or its GPU is not there."""

    captured = True

    def __init__(self) -> None:
        try:
            self.aiter: Any = importlib.import_module("aiter")
            self.module: Any = importlib.import_module("aiter.fused_moe")
            self.shuffle: Any = importlib.import_module("aiter.ops.shuffle").shuffle_weight
        except ImportError as exc:
            raise CannotRunError(f"aiter cannot be imported here: {exc}", WAYS_ON) from exc
        if not torch.cuda.is_available():
            raise CannotRunError("torch sees no GPU here", "start the image with the GPU's devices")
        self._layer: tuple[tuple[int, ...], Weights, Weights] | None = None

    def machine(self) -> Machine:
        properties = torch.cuda.get_device_properties(0)
        units = getattr(self.module, "get_cu_num", lambda: properties.multi_processor_count)()
        versions = {"torch": str(torch.__version__), "hip": str(torch.version.hip)}
        for name in ("aiter", "amd-aiter", "sglang"):
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return Machine(
            operator="aiter fused_moe",
            device=f"{properties.name} ({getattr(properties, 'gcnArchName', 'unknown arch')})",
            stand_in=False,
            compute_units=int(units),
            versions=versions,
        )

    def prepare(self, case: Case, seed: int) -> "Call":
        key = (case.hidden, case.intermediate, case.topk, case.experts, seed)
        known = self._layer
        if known is None or known[0] != key:
            self._layer = None  # frees the last one first
            plain = make_weights(case, seed, "cuda", self.aiter.dtypes.fp8)
            kernel = Weights(
                self.shuffle(plain.w1, (16, 16)),
                self.shuffle(plain.w2, (16, 16)),
                plain.w1_scale,
                plain.w2_scale,
                plain.used,
            )
            self._layer = known = key, plain, kernel
        call = Call(self, known[2], make_batch(case, known[1], seed, "cuda"))
        call.warm_up()
        return call


class Call:
    """See `operator.Prepared`."""

    def __init__(self, operator: AiterOperator, weights: Weights, batch: Batch) -> None:
        self.operator, self.weights, self.batch = operator, weights, batch

    def warm_up(self) -> None:
        """The first call of a shape may build its kernel, and use memory for that."""
        self._call()
        torch.cuda.synchronize()

    def check(self, value: float) -> tuple[float, bool]:
        with memory.filled(value, "cuda") as fresh:
            found = self._call()
        return relative_error(found, self.batch.y), fresh.buffers > 0

    def microseconds(self, repeats: int) -> Sequence[float]:
        return timing.graph_microseconds(self._call, repeats)

    def _call(self) -> Any:
        aiter = self.operator.aiter
        return self.operator.module.fused_moe(
            self.batch.x,
            self.weights.w1,
            self.weights.w2,
            self.batch.gates,
            self.batch.ids,
            activation=aiter.ActivationType.Silu,
            quant_type=aiter.QuantType.per_128x128,
            w1_scale=self.weights.w1_scale,
            w2_scale=self.weights.w2_scale,
        )
