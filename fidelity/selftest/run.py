"""One run of one row: the embedded server as its own process, a plan, a verdict, and what it cost."""

import hashlib
import itertools
import json
import os
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fidelity import __version__
from fidelity.errors import FidelityError
from fidelity.judge import judge
from fidelity.manifest import Manifest
from fidelity.observations import read
from fidelity.plan import RunPlan
from fidelity.runner import OBSERVATIONS
from fidelity.runner import run as run_plan
from fidelity.selftest.machine import machine, sources
from fidelity.selftest.row import Row
from fidelity.verdicts import COULD_NOT_RUN, RunVerdict

_numbers = itertools.count()


@dataclass(frozen=True)
class Task:
    """One run to make: a row at a seed and a share of corrupt prompts."""

    row: Row
    seed: int
    rate: float = 1.0
    quick: bool = False

    @property
    def key(self) -> str:
        """The same for the same plan in the same version. Raises PlanError."""
        plan = self.row.run_plan(self.seed, self.rate, quick=self.quick)
        told = f"{__version__} {self.row.names} {plan.model_dump_json()}"
        return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """What came of a task. `holds`: the verdict is the one that the row must have; `diagnoses` are the
    hypotheses of the first rank; `seconds` are of the wall clock, `cpu` those of this process and the
    server; `machine` and `sources` say where and of what it was run."""

    key: str
    row: str
    seed: int
    rate: float
    state: str
    holds: bool
    caught_by: str
    reason: str
    diagnoses: tuple[str, ...]
    requests: int
    seconds: float
    cpu: float
    machine: str
    sources: str

    def line(self) -> str:
        """For a log: `split-k-nan, seed 0, rate 1: fail, resend L=193 tail=1 (141 requests, 5.2 s)`."""
        said = f"{self.row}, seed {self.seed}, rate {self.rate:g}: {self.state}"
        where = f", {self.caught_by}" if self.caught_by else ""
        wrong = "" if self.holds else " - not as it must be"
        return f"{said}{where} ({self.requests} requests, {self.seconds:.1f} s){wrong}"


def run(task: Task) -> Outcome:
    """Run it in a temporary folder and judge it there. Raises PlanError."""
    started, cpu = time.monotonic(), _cpu()
    with tempfile.TemporaryDirectory(prefix="fidelity-selftest-") as folder:
        try:
            manifest = record(task, Path(folder))
            observations = read(Path(folder) / OBSERVATIONS)
            verdict = judge(manifest, observations)
            requests = len(observations)
        except FidelityError as exc:
            return _outcome(task, None, exc.message, 0, time.monotonic() - started, _cpu() - cpu)
    return _outcome(task, verdict, "", requests, time.monotonic() - started, _cpu() - cpu)


def record(task: Task, folder: Path) -> Manifest:
    """Run the plan of a task and leave its record in `folder`, unjudged. Raises FidelityError."""
    if task.row.group != "reference":
        return _recorded(task.row.run_plan(task.seed, task.rate, quick=task.quick), folder)
    healthy = folder / "healthy"
    healthy.mkdir()
    _recorded(task.row.run_plan(task.seed, 1.0, quick=task.quick, healthy=True), healthy)
    return _recorded(task.row.run_plan(task.seed, task.rate, quick=task.quick, reference=healthy), folder)


def _recorded(plan: RunPlan, folder: Path) -> Manifest:
    run_id = f"selftest-{os.getpid()}-{next(_numbers)}"
    manifest = Manifest(run_id, time.strftime("%Y-%m-%dT%H:%M:%S%z"), plan)
    for _ in run_plan(manifest, folder):
        pass
    return manifest


def to_json(outcome: Outcome) -> str:
    """One line without the newline."""
    return json.dumps(asdict(outcome))


def from_json(line: str) -> Outcome:
    """The inverse of `to_json`. Raises ValueError, TypeError, KeyError."""
    data = json.loads(line)
    return Outcome(**{**data, "diagnoses": tuple(data["diagnoses"])})


def _outcome(
    task: Task, verdict: RunVerdict | None, error: str, requests: int, seconds: float, cpu: float
) -> Outcome:
    arms = verdict.arms if verdict else ()
    return Outcome(
        key=task.key,
        row=task.row.name,
        seed=task.seed,
        rate=task.rate,
        state=verdict.state if verdict else COULD_NOT_RUN,
        holds=verdict is not None and task.row.holds(verdict, task.rate),
        caught_by=task.row.caught_by(verdict) if verdict else "",
        reason=verdict.reason if verdict else error,
        diagnoses=tuple(one.name for arm in arms for one in arm.hypotheses if one.rank == 1),
        requests=requests,
        seconds=round(seconds, 2),
        cpu=round(cpu, 2),
        machine=machine(),
        sources=sources(),
    )


def _cpu() -> float:
    """Seconds of processor time of this process and of its ended children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime
