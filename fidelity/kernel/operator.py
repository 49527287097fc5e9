"""The interface between the harness and an operator under test, and the operators by name."""

from collections.abc import Sequence
from typing import Any, Protocol

from fidelity.kernel.work import Case, Machine, Work


class CannotRunError(Exception):
    """The operator cannot be run here; `hint` says the way on."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Prepared(Protocol):
    """One call made ready: weights, tokens, and what it should give."""

    def check(self, value: float) -> tuple[float, bool]:
        """Call once, with the memory of its buffers full of `value`: the largest relative error over the
        tokens, NaN for an output that is no number; and whether the call took memory that was so filled."""

    def microseconds(self, repeats: int) -> Sequence[float]:
        """`repeats` timed samples of the call."""


class Operator(Protocol):
    """`module` is what holds `ck_moe_stage1`, which guards wrap. `captured`: timings are graph replays."""

    module: Any
    captured: bool

    def machine(self) -> Machine:
        """Where it runs, and on what."""

    def prepare(self, case: Case, seed: int) -> Prepared:
        """The same case and seed give the same weights and tokens."""


def operator_for(work: Work) -> Operator:
    """The operator that the work names. Raises CannotRunError."""
    try:
        import torch  # noqa: F401
    except ImportError as exc:
        raise CannotRunError(
            f"torch cannot be imported here: {exc}",
            "run inside the ROCm image with --image, or install the extra: pip install 'fidelity[kernel]'",
        ) from exc
    if work.backend == "aiter":
        from fidelity.kernel.aiter_operator import AiterOperator

        return AiterOperator()
    from fidelity.kernel.torch_operator import TorchOperator

    return TorchOperator(work.units, work.device, clean=work.backend == "torch-clean")
