"""`fidelity kernel`: from options to reports and an exit code."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fidelity.errors import INTERRUPTED, PlanError, ResultsError, did_you_mean
from fidelity.execute import RESULTS
from fidelity.gpus import gpu as find_gpu
from fidelity.kernel import launch, report
from fidelity.kernel.cases import cases
from fidelity.kernel.guarding import CHOICES
from fidelity.kernel.verdict import judge
from fidelity.kernel.work import Check, Work, read
from fidelity.model_shapes import find
from fidelity.servers import container, image
from fidelity.servers.process import keep

BACKENDS = ("aiter", "torch", "torch-clean")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Options:
    """What the flags of `fidelity kernel` say. `minutes` is how long the operator's process may take."""

    model: str
    tps: Sequence[int] = ()
    gpu: str = "mi350x"
    units: int | None = None
    ep: int = 1
    backend: str = "aiter"
    guards: Sequence[str] = ("none", "splitk")
    device: str = "auto"
    repeats: int = 20
    seed: int = 0
    minutes: float = 60.0
    python: str | None = None
    image: str | None = None
    runtime: str | None = None
    output: Path | None = None
    print_command: bool = False


def kernel(options: Options, console: Console) -> int:
    """Raises UsageError, ResultsError, StartError."""
    work = _work(options)
    if options.print_command:
        folder = options.output or RESULTS / "KERNEL"
        sys.stdout.write(shlex.join(_line(options, folder, "fidelity-kernel")) + "\n")
        return 0
    folder = _folder(options)
    work.save(folder / launch.WORK)
    interrupted = False
    try:
        ended = _run(options, folder, work, console)
    except KeyboardInterrupt:
        ended, interrupted = "interrupted", True
    verdict = judge(work, list(read(folder / launch.ANSWERS)), ended)
    report.write_all(folder, work, verdict, shlex.join(["fidelity", *sys.argv[1:]]))
    report.print_verdict(console, verdict, folder)
    return INTERRUPTED if interrupted else verdict.exit_code


def _work(options: Options) -> Work:
    for flag, value, known in (
        ("--backend", options.backend, BACKENDS),
        ("--device", options.device, DEVICES),
    ):
        if value not in known:
            raise PlanError(f"{flag} {value} is not known", did_you_mean(value, known))
    for guard in options.guards:
        if guard not in CHOICES:
            raise PlanError(f"the kernel check has no guard '{guard}'", did_you_mean(guard, CHOICES))
    units = options.units or find_gpu(options.gpu).units
    model = find(options.model)
    return Work(
        model=model.model,
        backend=options.backend,
        units=units,
        cases=tuple(cases(model, options.tps, units, ep=options.ep)),
        guards=tuple(dict.fromkeys(options.guards)),
        device=options.device,
        repeats=options.repeats,
        seed=options.seed,
    )


def _folder(options: Options) -> Path:
    name = Path(options.model).name.removesuffix(".json") or "model"
    folder = options.output or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}-kernel-{name}"
    if (folder / launch.WORK).exists():
        raise ResultsError(f"{folder} already holds a kernel check", "name another --output folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ResultsError(f"cannot make {folder}: {exc.strerror}", "give another --output folder") from exc
    return folder


def _line(options: Options, folder: Path, name: str) -> list[str]:
    if options.image is None:
        return launch.direct_line(options.python or sys.executable, folder)
    return launch.container_line(image.find_runtime(options.runtime), options.image, name, folder)


def _run(options: Options, folder: Path, work: Work, console: Console) -> str | None:
    """Run the operator's process to its end, however this one ends; how it ended, None for well."""
    name = f"fidelity-kernel-{os.getpid()}"
    line = _line(options, folder, name)
    answers, log = folder / launch.ANSWERS, folder / launch.LOG
    total = 2 * len(work.cases) * len(work.guards)
    last = "" if options.image is None else shlex.join([line[0], "rm", "--force", name])
    deadline = time.monotonic() + options.minutes * 60
    with ExitStack() as stack:
        env = {}
        if options.image is not None:
            container.kernel_caches().mkdir(parents=True, exist_ok=True)
        elif options.python is not None:
            env["PYTHONPATH"] = str(stack.enter_context(launch.package_alone(folder)).resolve())
        process = stack.enter_context(keep(line, env, log, last=last))
        status = stack.enter_context(console.status(f"{work.model}: starting the operator"))
        while True:
            try:
                code = process.wait(0.5)
                break
            except subprocess.TimeoutExpired:
                done = sum(isinstance(one, Check) for one in read(answers))
                status.update(f"{work.model}: {done} of {total} checks")
            if time.monotonic() > deadline:
                return f"not done after {options.minutes:g} minutes (see {log})"
    said = [text for text in log.read_text("utf-8", "replace").splitlines() if text.strip()]
    return None if code == 0 else f"exit code {code}{': ' + said[-1][-300:] if said else ''} (see {log})"
