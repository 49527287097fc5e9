"""An operator in NumPy with the fault, so that the harness is tested where there is no torch."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fidelity.kernel.cases import cases
from fidelity.kernel.work import Case, Machine, Work
from fidelity.model_shapes import MoeShape

UNITS = 16
TINY = MoeShape("tiny", hidden=1024, intermediate=256, topk=2, experts=16)
"""Four K tiles; at 16 compute units TP1 is affected at M = 1, and TP2 up to M = 2."""


@dataclass
class NumpyOperator:
    """`clean` zeroes every buffer; `wrong_at` are batch sizes that are off by one half; `fills` False is an
    allocator that cannot be filled; `deaf` ignores what the module's function was replaced with."""

    clean: bool = False
    wrong_at: tuple[int, ...] = ()
    fills: bool = True
    deaf: bool = False
    captured: bool = False
    units: int | None = None
    calls: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module: Any = SimpleNamespace(ck_moe_stage1=self.stage1)
        self.module.get_2stage_cfgs = functools.lru_cache(maxsize=64)(self.configure)
        self.memory = 0.0

    def machine(self) -> Machine:
        return Machine("NumPy operator", "CPU", stand_in=True, compute_units=self.units)

    def configure(self, splitk: int) -> Callable[..., Any]:
        stage1 = self.stage1 if self.deaf else self.module.ck_moe_stage1
        return functools.partial(stage1, quant_type="per_1x128", splitk=splitk)

    def stage1(
        self,
        hidden_states: Any,
        weight: Any,
        block_m: int,
        kernelName: str = "",
        quant_type: str = "No",
        splitk: int = 1,
    ) -> Any:
        k, splits = hidden_states.shape[1], max(splitk, 1)
        self.calls.append((len(hidden_states), splits))
        zeroed = self.clean or splits == 1 or k // (splits * 256) > 1
        sums = np.full((len(hidden_states), weight.shape[0]), 0.0 if zeroed else self.memory)
        for part in np.array_split(np.arange(k), splits):
            sums += hidden_states[:, part] @ weight[:, part].T
        return sums * (1.5 if len(hidden_states) in self.wrong_at else 1.0)

    def prepare(self, case: Case, seed: int) -> "Call":
        return Call(self, case, np.random.default_rng(seed))


class Call:
    def __init__(self, operator: NumpyOperator, case: Case, rng: np.random.Generator) -> None:
        self.operator, self.case = operator, case
        self.x, self.weight = rng.normal(size=(case.m, case.hidden)), rng.normal(size=(8, case.hidden))

    def check(self, value: float) -> tuple[float, bool]:
        if self.operator.fills:
            self.operator.memory = value
        return self.error(), self.operator.fills

    def error(self) -> float:
        stage1 = self.operator.module.get_2stage_cfgs(self.case.splits)
        expected = self.x @ self.weight.T
        difference = stage1(self.x, self.weight, block_m=16) - expected
        return float((np.linalg.norm(difference, axis=1) / np.linalg.norm(expected, axis=1)).max())

    def microseconds(self, repeats: int) -> list[float]:
        self.error()
        return [float(n + 1) for n in range(repeats)]


@pytest.fixture(scope="session")
def numpy_operator() -> type[NumpyOperator]:
    return NumpyOperator


@pytest.fixture
def work() -> Callable[..., Work]:
    """Work on the tiny model at TP 1 and 2."""

    def make(**given: Any) -> Work:
        calls = tuple(cases(TINY, [1, 2], UNITS))
        return Work(
            **{"model": "tiny", "backend": "torch", "units": UNITS, "cases": calls}
            | {"guards": ("none", "splitk"), "repeats": 3}
            | given
        )

    return make
