"""The runs while they run: a bar on a terminal, a line each elsewhere."""

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

from fidelity.selftest.run import Outcome

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """`with Progress(console) as progress:`, then `begin` with the number of runs to come, as often as there
    are more, and `advance` with each outcome."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0
        self._task: TaskID | None = None
        # FORCE_COLOR makes a CI log look like a terminal to rich; a bar would fill it with frames.
        self._bar = _bar(console) if console.is_interactive and console.file.isatty() else None

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("selftest", total=None, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, count: int) -> None:
        self._total += count
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self._total)

    def advance(self, outcome: Outcome) -> None:
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, note=outcome.row)
        if self._bar is None or not outcome.holds:
            said = f"{self._done}/{self._total} {outcome.line()}"
            self._console.print(said, markup=False, highlight=False, soft_wrap=True)


def _bar(console: Console) -> "Bar":
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=console,
    )
