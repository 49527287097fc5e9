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

    def __init__(self, device: str = "cuda") -> None:
        self.device, self.captured = device, device == "cuda"
        try:
            self.aiter: Any = importlib.import_module("aiter")
            self.module: Any = importlib.import_module("aiter.fused_moe")
            self.shuffle: Any = importlib.import_module("aiter.ops.shuffle").shuffle_weight
        except ImportError as exc:
            raise CannotRunError(f"aiter cannot be imported here: {exc}", WAYS_ON) from exc
        if device == "cuda" and not torch.cuda.is_available():
            raise CannotRunError("torch sees no GPU here", "start the image with the GPU's devices")
        self._layer: tuple[tuple[int, ...], Weights, Weights] | None = None

    def machine(self) -> Machine:
        properties = torch.cuda.get_device_properties(0) if self.captured else None
        units = getattr(self.module, "get_cu_num", lambda: getattr(properties, "multi_processor_count", None))
        versions = {"torch": str(torch.__version__), "hip": str(torch.version.hip)}
        for name in ("aiter", "amd-aiter", "sglang"):
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        arch = getattr(properties, "gcnArchName", "unknown arch")
        return Machine(
            operator="aiter fused_moe",
            device=f"{getattr(properties, 'name', 'CPU')} ({arch})",
            stand_in=False,
            compute_units=units(),
            versions=versions,
        )

    def prepare(self, case: Case, seed: int) -> "Call":
        key = (case.hidden, case.intermediate, case.topk, case.experts, seed)
        known = self._layer
        if known is None or known[0] != key:
            self._layer = None  # frees the last one first
            plain = make_weights(case, seed, self.device, self.aiter.dtypes.fp8)
            kernel = Weights(
                self.shuffle(plain.w1, (16, 16)),
                self.shuffle(plain.w2, (16, 16)),
                plain.w1_scale,
                plain.w2_scale,
                plain.used,
            )
            self._layer = known = key, plain, kernel
        call = Call(self, known[2], make_batch(case, known[1], seed, self.device))
        call.warm_up()
        return call


class Call:
    """See `operator.Prepared`."""

    def __init__(self, operator: AiterOperator, weights: Weights, batch: Batch) -> None:
        self.operator, self.weights, self.batch = operator, weights, batch

    def warm_up(self) -> None:
        """The first call of a shape may build its kernel, and use memory for that."""
        relative_error(self._call(), self.batch.y)

    def check(self, value: float) -> tuple[float, bool]:
        with memory.filled(value, self.operator.device) as fresh:
            found = self._call()
        return relative_error(found, self.batch.y), fresh.buffers > 0

    def microseconds(self, repeats: int) -> Sequence[float]:
        measure = timing.graph_microseconds if self.operator.captured else timing.cpu_microseconds
        return measure(self._call, repeats)

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
