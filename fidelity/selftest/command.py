"""`fidelity selftest`: run the rows, keep what is done, print the table, say by the exit code if it holds."""

import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from fidelity.errors import FAIL, INTERRUPTED, PASS, ResultsError, UsageError, did_you_mean
from fidelity.observations import cut_torn_line
from fidelity.selftest.catalogue import ROWS
from fidelity.selftest.pool import outcomes
from fidelity.selftest.progress import Progress
from fidelity.selftest.row import Row
from fidelity.selftest.run import Outcome, Task, from_json, to_json
from fidelity.selftest.summary import Line, caught_enough, summarise
from fidelity.selftest.table import as_markdown, as_text
from fidelity.verdicts import COULD_NOT_RUN


@dataclass(frozen=True)
class Options:
    """`faults` are names of rows or of kinds of fault, all rows where there are none; `seeds` of every row,
    `control_seeds` of the negative controls; `output` is the Markdown file, `state` the JSONL file that keeps
    the finished runs, beside the output where it is not named."""

    faults: Sequence[str] = ()
    quick: bool = False
    seeds: int = 1
    control_seeds: int | None = None
    rates: Sequence[float] = (1.0,)
    jobs: int = 1
    output: Path | None = None
    state: Path | None = None


def selftest(options: Options, console: Console) -> int:
    """The exit code: 0 when all is as it must be, 10 when not, 130 when interrupted. Raises UsageError."""
    rows = choose(options.faults)
    output = options.output
    done = Done(options.state or (None if output is None else output.with_suffix(".jsonl")))
    interrupted = False
    with _interrupts(), Progress(console) as progress:
        try:
            _run(rows, options, done, progress)
        except KeyboardInterrupt:
            interrupted = True
    found = done.of([task for rate in _rates(options) for task in _tasks(rows, options, rate)])
    lines = summarise(rows, found)
    sys.stdout.write(as_text(lines, found))
    if interrupted:
        sys.stdout.write("INTERRUPTED: the table is not complete; the same command goes on from there\n")
    elif output is not None:
        _write(output, as_markdown(lines, found, _command()))
    return INTERRUPTED if interrupted else PASS if holds(lines) else FAIL


def _run(rows: Sequence[Row], options: Options, done: "Done", progress: Progress) -> None:
    """The rates from the largest down, of each row to the first at which too few seeds are caught; there the
    rest of the seeds is left out."""
    for rate in _rates(options):
        tasks = _tasks(rows, options, rate)
        missed = Counter(one.row for one in done.of(tasks) if not one.holds)
        waiting = [task for task in tasks if task not in done]
        progress.begin(len(waiting))
        for outcome in outcomes(_worth(waiting, missed, options, progress), options.jobs):
            done.add(outcome)
            missed[outcome.row] += not outcome.holds
            progress.advance(outcome)
        rows = [row for row in rows if row.takes_rate and not _lost(row, missed, options)]


def _worth(
    tasks: Sequence[Task], missed: Counter[str], options: Options, progress: Progress
) -> Iterator[Task]:
    """Those that can still change what becomes of their rate: all of them at rate 1."""
    for task in tasks:
        if task.rate < 1 and _lost(task.row, missed, options):
            progress.begin(-1)
        else:
            yield task


def _lost(row: Row, missed: Counter[str], options: Options) -> bool:
    seeds = _seeds(row, options)
    return not caught_enough(seeds - missed[row.name], seeds)


def choose(names: Sequence[str]) -> list[Row]:
    """The rows of these names, or with these kinds of fault. Raises UsageError."""
    chosen: list[Row] = []
    for name in names:
        found = [row for row in ROWS if name == row.name] or [row for row in ROWS if name in _kinds(row)]
        if not found:
            known = {row.name for row in ROWS} | {kind for row in ROWS for kind in _kinds(row)}
            raise UsageError(f"the catalogue has no '{name}'", did_you_mean(name, known))
        chosen += [row for row in found if row not in chosen]
    return chosen or list(ROWS)


def holds(lines: Sequence[Line]) -> bool:
    """Is every row that decides as it must be, in all its runs at rate 1?"""
    return all(line.held == line.runs for line in lines)


class Done:
    """The finished runs, kept in a JSONL file, if there is one. Raises ResultsError."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Outcome] = {}
        if self._path is None or not self._path.exists():
            return
        cut_torn_line(self._path)
        for number, line in enumerate(_read(self._path), start=1):
            try:
                outcome = from_json(line)
            except (ValueError, TypeError, KeyError) as exc:
                raise ResultsError(
                    f"{self._path} line {number} is no finished run of this version: {exc}",
                    "name another --state, or delete the file",
                ) from exc
            self._known[outcome.key] = outcome

    def __contains__(self, task: Task) -> bool:
        return task.key in self._known

    def add(self, outcome: Outcome) -> None:
        """Keep it, on disk before anything else is done. One that could not run is tried again another
        time."""
        self._known[outcome.key] = outcome
        if self._path is None or outcome.state == COULD_NOT_RUN:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(to_json(outcome) + "\n")
        except OSError as exc:
            raise ResultsError(f"cannot write {self._path}: {exc.strerror}") from exc

    def of(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Those of the tasks, in their order."""
        keys = [task.key for task in tasks]
        return [self._known[key] for key in keys if key in self._known]


def _rates(options: Options) -> list[float]:
    return sorted({1.0, *options.rates}, reverse=True)


def _tasks(rows: Sequence[Row], options: Options, rate: float) -> list[Task]:
    """Seed by seed, so that a row whose rate is missed costs few runs."""
    seeds = max((_seeds(row, options) for row in rows), default=0)
    return [
        Task(row, seed, rate, options.quick)
        for seed in range(seeds)
        for row in rows
        if (rate == 1 or row.takes_rate) and seed < _seeds(row, options)
    ]


def _seeds(row: Row, options: Options) -> int:
    more = options.control_seeds if row.group == "control" else None
    return more or options.seeds


def _kinds(row: Row) -> list[str]:
    return [part.split(":")[0] for part in row.fault.split(",")]


def _command() -> str:
    return shlex.join(["fidelity", *sys.argv[1:]])


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as exc:
        raise ResultsError(f"cannot read {path}: {exc.strerror}") from exc


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ResultsError(f"cannot write {path}: {exc.strerror}") from exc


@contextmanager
def _interrupts() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
