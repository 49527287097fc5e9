"""A run from plan to written reports and exit code: what `fidelity run`, `check` and `report` do."""

import os
import signal
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from fidelity import manifest as manifests
from fidelity.errors import ResultsError, UsageError
from fidelity.judge import judge
from fidelity.manifest import Manifest
from fidelity.observations import read
from fidelity.plan import RunPlan, Thresholds
from fidelity.reference import of_run, save
from fidelity.report.console import Progress, print_verdict
from fidelity.report.write import write_all
from fidelity.reproduce.reported import scripts
from fidelity.runner import OBSERVATIONS, run

RESULTS = Path("results")


def new_run(plan: RunPlan, output: Path | None, argv: list[str]) -> tuple[Manifest, Path]:
    """A fresh manifest and its empty directory. Raises ResultsError when that cannot be written or is in
    use."""
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    what = "".join(c if c.isalnum() or c in "-._" else "-" for c in plan.target.url or plan.target.model)
    directory = output or RESULTS / f"{stamp}-{what}"
    # The process id keeps two runs of one second apart, in their folders and in the server's cache.
    run_id = f"{stamp}-{os.getpid()}"
    if (directory / manifests.NAME).exists():
        if output is None:
            directory = directory.with_name(f"{directory.name}-{os.getpid()}")
        else:
            raise ResultsError(
                f"{directory} already holds a run",
                f"go on with `fidelity run --resume {directory}`, or name another",
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ResultsError(
            f"cannot make {directory}: {exc.strerror}", "give another --output folder"
        ) from exc
    manifest = Manifest(
        run_id=run_id, started=time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now)), plan=plan, argv=argv
    )
    manifest.save(directory)
    return manifest, directory


def extend(manifest: Manifest, prompts: int) -> None:
    """Give a recorded run more prompts, which takes another of the looks that its plan allowed beforehand:
    to sample until it passes would pass anything. Raises UsageError."""
    plan, looks = manifest.plan, manifest.plan.thresholds.looks
    if prompts == plan.prompts.count:
        return
    if prompts < plan.prompts.count:
        raise UsageError(f"the run has {plan.prompts.count} prompts already, {prompts} are fewer")
    if manifest.looks_taken >= looks:
        raise UsageError(
            f"looks that the plan of this run allows: {looks}; taken: {manifest.looks_taken}",
            "start a new run; one whose plan says `thresholds: {looks: 2}` can be extended once",
        )
    manifest.looks_taken += 1
    manifest.plan = plan.with_prompts(prompts)


def execute(manifest: Manifest, directory: Path, console: Console) -> int:
    """Run it, judge it, write every report, say the verdict; returns the exit code."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Progress(console, manifest.plan) as progress:
            events = run(manifest, directory)
            while True:
                try:
                    event = next(events, None)
                    if event is None:
                        break
                    progress.handle(event)
                except KeyboardInterrupt:
                    # It landed here and not in the runner: hand it over, so that the servers end and the
                    # record says how.
                    progress.handle(events.throw(KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGTERM, before)
    code = conclude(manifest, directory, console)
    if manifest.plan.save_reference is not None:
        _save_reference(manifest, directory, manifest.plan.save_reference, console)
    return code


def _save_reference(manifest: Manifest, directory: Path, path: Path, console: Console) -> None:
    """What the run concluded stands, whether or not there is anything to save of it."""
    try:
        reference = of_run(manifest, read(directory / OBSERVATIONS))
        save(reference, path)
    except ResultsError as exc:
        console.print(f"no reference was saved: {exc.message}", markup=False, style="yellow")
        return
    said = f"reference: {path}, {len(reference.told)} answers of arm {reference.source.arm}"
    console.print(said, markup=False, soft_wrap=True)


def conclude(
    manifest: Manifest, directory: Path, console: Console, thresholds: Thresholds | None = None
) -> int:
    """Judge what a directory holds, by the plan's thresholds or others, write the reports, say the verdict;
    returns the exit code."""
    observations = read(directory / OBSERVATIONS)
    verdict = judge(manifest, observations, thresholds)
    write_all(directory, verdict, manifest, scripts(directory, verdict, manifest, observations))
    print_verdict(console, verdict, directory)
    return verdict.exit_code


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
