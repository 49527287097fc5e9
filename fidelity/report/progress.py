"""A run while it runs: a bar on a terminal, plain lines elsewhere."""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

from fidelity import events
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.report import words
from fidelity.report.screen import say

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LINES_PER_ARM = 10
_LOG_EVERY = 30.0  # seconds


@dataclass
class _Tally:
    """What one arm has done so far; `total` is the expected number of requests."""

    total: int
    task: "TaskID | None"
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    lines: int = 0
    corrupt_sends: int = 0
    corrupt_prompts: set[str] = field(default_factory=set)

    @property
    def note(self) -> str:
        if not self.corrupt_sends:
            return ""
        return f"corrupt prompts: {len(self.corrupt_prompts)}, sends: {self.corrupt_sends}"


class Progress:
    """Consumes the events of one run: `with Progress(console, plan) as progress: progress.handle(event)`.

    The first corrupt hit of an arm is shown when it comes, later ones are counted.
    """

    def __init__(self, console: Console, plan: RunPlan) -> None:
        self._console = console
        self._plan = plan
        self._tallies: dict[str, _Tally] = {}
        self._starting: TaskID | None = None
        self._last_log = -_LOG_EVERY
        # FORCE_COLOR makes a CI log look like a terminal to rich; a bar would fill it with frames.
        self._bar = _bar(console) if console.is_interactive and console.file.isatty() else None

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def handle(self, event: events.Event) -> None:
        """Show one event."""
        match event:
            case events.ServerStarting(arm, what):
                self._say(f"arm {arm}: starting {what}")
            case events.ServerLog(arm, line):
                self._log_line(arm, line)
            case events.ServerReady():
                self._ready(event)
            case events.Warning(arm, message):
                self._say(f"warning: arm {arm}: {message}", "yellow")
            case events.Sent(observation):
                self._advance(observation.arm, 1)
            case events.Skipped(arm, requests):
                self._advance(arm, requests)
            case events.Corruption():
                self._corruption(event)
            case events.ArmDone(arm, seconds):
                self._done(arm, seconds)
            case events.RunEnded():
                self._ended(event)

    def _log_line(self, arm: str, line: str) -> None:
        """While a server starts: its newest log line beside a spinner, elsewhere one line now and then."""
        if self._bar is not None:
            if self._starting is None:
                self._starting = self._bar.add_task(arm, total=None, note="")
            self._bar.update(self._starting, note=words.readable(line, 60))
        elif time.monotonic() - self._last_log > _LOG_EVERY:
            self._last_log = time.monotonic()
            self._say(f"arm {arm}: starting: {words.readable(line, 120)}")

    def _ready(self, event: events.ServerReady) -> None:
        if self._bar is not None and self._starting is not None:
            self._bar.remove_task(self._starting)
            self._starting = None
        facts = event.facts
        suspects = sorted({cell.tail for cell in event.cells if cell.kind == "suspect"})
        controls = sorted({cell.tail for cell in event.cells if cell.kind != "suspect"})
        server = f"{facts.engine} {facts.version}, {facts.model}{', SIMULATED' if facts.simulated else ''}"
        self._say(f"arm {event.arm}: ready in {event.seconds:.1f} s: {server}")
        self._say(
            f"arm {event.arm}: probes {', '.join(self._plan.selected)}: {self._plan.prompts.count} prompts x "
            f"{len(event.cells)} lengths, suspect tails {_listed(suspects)}, controls {_listed(controls)}, "
            f"about {event.requests} requests"
        )
        task = None
        if self._bar is not None:
            task = self._bar.add_task(event.arm, total=event.requests, note="")
        self._tallies[event.arm] = _Tally(event.requests, task)

    def _advance(self, arm: str, requests: int) -> None:
        # What a reference is asked counts with the arm that is held against it, the newest one.
        arm = arm if arm in self._tallies else next(reversed(self._tallies), arm)
        tally = self._tallies.get(arm)
        if tally is None:
            return
        tally.done += requests
        # Failed groups start again, so more may be sent than was foreseen.
        tally.total = max(tally.total, tally.done)
        if self._bar is not None and tally.task is not None:
            self._bar.update(tally.task, completed=tally.done, total=tally.total, note=tally.note)
            return
        steps = tally.done * _LINES_PER_ARM // tally.total
        if steps > tally.lines and steps < _LINES_PER_ARM:
            tally.lines = steps
            self._say(self._state_of(arm, tally, time.monotonic() - tally.started))

    def _corruption(self, event: events.Corruption) -> None:
        hit = event.hit
        tally = self._tallies.setdefault(hit.arm, _Tally(0, None))
        tally.corrupt_sends += 1
        tally.corrupt_prompts.add(hit.prompt)
        if tally.corrupt_sends > 1:
            return
        after = f"{tally.done} requests, {time.monotonic() - tally.started:.1f} s"
        why = words.why(event.agreement)
        self._say(f"CORRUPT: arm {hit.arm}: first proof after {after}: {why}", "bold red")
        self._say(
            f"  prompt {hit.prompt}, {hit.length} tokens: {hit.answer.cached_tokens} from the cache, "
            f"{hit.tail_seen} recomputed"
        )
        self._say(f"  cold said {_answer(event.cold)}")
        self._say(f"  hit said  {_answer(hit)}")

    def _done(self, arm: str, seconds: float) -> None:
        tally = self._tallies.get(arm)
        if tally is None:
            return
        tally.total = tally.done
        if self._bar is not None and tally.task is not None:
            self._bar.update(tally.task, completed=tally.done, total=tally.total, note=tally.note)
        else:
            self._say(self._state_of(arm, tally, seconds))

    def _ended(self, event: events.RunEnded) -> None:
        if self._bar is not None:
            self._bar.stop()
        if event.status == "complete":
            return
        what = "error" if event.status == "failed" else event.status
        said = f": {event.error}" if event.error and event.error != event.status else ""
        self._say(f"{what}{said}", "bold red" if event.status == "failed" else "yellow")
        if event.hint:
            self._say(f"  {event.hint}")

    def _state_of(self, arm: str, tally: _Tally, seconds: float) -> str:
        percent = 100 * tally.done // tally.total if tally.total else 100
        note = f", {tally.note}" if tally.note else ""
        return f"arm {arm}: {tally.done}/{tally.total} requests ({percent} %), {seconds:.0f} s{note}"

    def _say(self, lines: str, style: str = "") -> None:
        say(self._console, lines, style)


def _bar(console: Console) -> "Bar":
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("arm {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", style="red", markup=False),
        console=console,
    )


def _answer(observation: Observation) -> str:
    answer = observation.answer
    if answer.text is None:
        return words.readable(answer.error or f"ids {answer.output_ids}", 100)
    return words.quoted(answer.text)


def _listed(tails: list[int]) -> str:
    return ", ".join(map(str, tails)) or "none"
