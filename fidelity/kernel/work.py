"""What is asked of the process that runs the operator, and its answers: plain values, a JSON line each."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILLS = {"nan": math.nan, "large": 3e4}
"""What new memory holds in a checked call."""
TOLERANCE = 0.1
"""Relative error up to which a token's output is right: fp8 activations alone give a few per cent."""


@dataclass(frozen=True)
class Case:
    """One call: `m` tokens through the experts of one rank at `tp`. `intermediate` is padded to whole blocks
    of 128, as sglang does. `splits`, `tiles` and `affected` are predicted by the default heuristic."""

    tp: int
    m: int
    hidden: int
    intermediate: int
    topk: int
    experts: int
    splits: int
    tiles: int
    affected: bool


@dataclass(frozen=True)
class Work:
    """`backend`: aiter, torch (the stand-in with the fault) or torch-clean. `guards` are checked, none first;
    `repeats` timed samples per call, 0 for none. `units` are the compute units of the prediction."""

    model: str
    backend: str
    units: int
    cases: tuple[Case, ...]
    guards: tuple[str, ...]
    device: str = "auto"
    repeats: int = 20
    seed: int = 0
    tolerance: float = TOLERANCE

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def load(path: Path) -> Work:
    data = json.loads(path.read_text(encoding="utf-8"))
    cases = tuple(Case(**case) for case in data.pop("cases"))
    return Work(**{**data, "guards": tuple(data.pop("guards")), "cases": cases})


@dataclass(frozen=True)
class Machine:
    """Where it ran. `compute_units` as the operator's library sees them, None where it has none."""

    operator: str
    device: str
    stand_in: bool
    compute_units: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One checked call. `error`: the largest relative error of a token's output, NaN for an output that is no
    number. `filled`: the call took memory that was full of the fill."""

    tp: int
    m: int
    guard: str
    fill: str
    filled: bool
    error: float


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: median, least and most of the samples. `captured`: replayed as a graph, so
    without the time to launch it."""

    tp: int
    m: int
    guard: str
    median: float
    least: float
    most: float
    captured: bool


@dataclass(frozen=True)
class GuardProof:
    """What a guard saw in that process. `shapes`: a call's shape with its split asked and given -> calls."""

    guard: str
    wrapped: str | None
    calls: int
    lowered: int
    shapes: dict[str, int]
    errors: list[str]


@dataclass(frozen=True)
class Failed:
    """Why the operator could not be run at all, and the way on."""

    message: str
    hint: str = ""


@dataclass(frozen=True)
class Done:
    """Everything asked for was run."""

    seconds: float


Answer = Machine | Check | Timing | GuardProof | Failed | Done
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Machine, Check, Timing, GuardProof, Failed, Done)}


def line(answer: Answer) -> str:
    return json.dumps({"kind": type(answer).__name__, **asdict(answer)}) + "\n"


def read(path: Path) -> Iterator[Answer]:
    """The answers so far; a line that a kill cut short is left out."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            data = json.loads(text)
        except ValueError:
            continue
        yield KINDS[data.pop("kind")](**data)
