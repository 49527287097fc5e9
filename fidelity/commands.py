"""What each command does, from parsed flags to an exit code."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from fidelity import manifest as manifests
from fidelity import plan as plans
from fidelity.errors import FidelityError, UsageError
from fidelity.execute import RESULTS, conclude, execute, extend, new_run
from fidelity.inputs import check_inputs
from fidelity.plan import RunPlan


def flags(**given: Any) -> dict[str, Any]:
    """The plan's data that the shared flags stand for; None leaves the plan's own value."""
    from fidelity.plan_probes import ALL_PROBES

    probes = given["probe"]
    if probes and "all" in probes:
        probes = list(ALL_PROBES)
    wanted = {"sweep": given["sweep"], "tasks": given["task_file"], "speed": given["max_slowdown"]}
    also = [name for name, value in wanted.items() if value]
    tails = {"suspects": given["tail"], "controls": given["control"], "positions": given["position"]}
    resend = {"hits": given["hits"], "lengths": given["length"], **tails}
    prompts = {
        "count": given["prompts"],
        "families": given["family"],
        "folder": given["prompt_folder"],
        "tokenizer": given["tokenizer"],
        "thinking": given["thinking"],
    }
    return {
        "probes": probes or None,
        "also": also or None,
        "skip": given["skip"] or None,
        "exact": given["exact"],
        "decode": {"tokens": given["tokens"]},
        "tasks": {"files": given["task_file"] or None, "limit": given["task_limit"]},
        "speed": {"max_slowdown": given["max_slowdown"]},
        "prompts": prompts,
        "resend": {key: value or None for key, value in resend.items()},
        "thresholds": {"max_rate": given["max_rate"]},
        **{key: given[key] for key in ("reference", "reference_any_model", "save_reference")},
        "seed": given["seed"],
        "max_minutes": given["max_minutes"],
        "fail_fast": given["fail_fast"],
    }


def run(
    model: str | None,
    url: str | None,
    guards: Sequence[str] | None,
    config: str | None,
    output: Path | None,
    resume: Path | None,
    shared: dict[str, Any],
    target: dict[str, Any],
) -> int:
    """`fidelity run` and `fidelity check`. Raises FidelityError."""
    console = Console()
    if resume is not None:
        manifest = manifests.load(resume)
        if shared["prompts"]["count"] is not None:
            extend(manifest, shared["prompts"]["count"])
        return execute(manifest, resume, console)
    plan = _plan(model, url, guards, config, shared, target)
    check_inputs(plan)
    manifest, directory = new_run(plan, output, sys.argv)
    return execute(manifest, directory, console)


def print_command(
    model: str | None,
    url: str | None,
    guards: Sequence[str] | None,
    config: str | None,
    output: Path | None,
    shared: dict[str, Any],
    target: dict[str, Any],
) -> int:
    """`fidelity run --print-command`: the command of each arm, ready to paste. Raises FidelityError."""
    from fidelity.servers.choose import command_for

    plan = _plan(model, url, guards, config, shared, target)
    for arm in plan.arms:
        line = command_for(plan.target, arm, output or RESULTS / "RUN")
        sys.stdout.write(f"# arm {arm.name}\n{line}\n")
    return 0


def dry_run(url: str, config: str | None, shared: dict[str, Any], target: dict[str, Any]) -> int:
    """`fidelity check --dry-run`. Raises FidelityError."""
    from fidelity.dry_run import dry_run as say

    say(_plan(None, url, None, config, shared, target), Console(highlight=False))
    return 0


def _plan(
    model: str | None,
    url: str | None,
    guards: Sequence[str] | None,
    config: str | None,
    shared: dict[str, Any],
    target: dict[str, Any],
) -> RunPlan:
    if model and url:
        raise UsageError(
            "--model and --url name two targets", "give one: a server that runs already needs no model"
        )
    if not (model or url or config):
        raise UsageError(
            "nothing says what to run",
            "give --model embedded, --model NAME, --url http://HOST:PORT or --config FILE",
        )
    data = plans.read_file(config) if config else {}
    over = {**shared, "target": {**_target(model, url, target.get("image")), **target}}
    if guards:
        over["arms"] = [{"name": name, "guard": name} for name in guards]
    return plans.build(plans.merge(data, over), config or "the command line")


def report(directory: Path, thresholds: dict[str, Any]) -> int:
    """`fidelity report`: None leaves the run's own threshold. Raises FidelityError."""
    manifest = manifests.load(directory)
    data = plans.merge(manifest.plan.model_dump(), {"thresholds": thresholds})
    return conclude(manifest, directory, Console(), plans.build(data).thresholds)


def plan(
    model: str | None,
    url: str | None,
    guards: Sequence[str] | None,
    config: str | None,
    shared: dict[str, Any],
    target: dict[str, Any],
    latency: float,
    minutes: float | None,
    as_json: bool,
) -> int:
    """`fidelity plan`: as given, or sized by `minutes` or by a max_rate without a number of prompts. Raises
    FidelityError."""
    from fidelity import planning
    from fidelity.prompting import order_prompts

    plan = _plan(model, url, guards, config, shared, target)
    if minutes is not None:
        plan = planning.sized_by_minutes(plan, minutes, latency)
    elif shared["thresholds"]["max_rate"] is not None and shared["prompts"]["count"] is None:
        plan = planning.sized_by_rate(plan)
    outlook = planning.look_ahead(plan, latency)
    order_prompts(plan)
    if as_json:
        sys.stdout.write(json.dumps(asdict(outlook), indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(planning.lines(outlook)) + "\n")
    return 0


def show_prompts(
    lengths: Sequence[int],
    count: int,
    family: Sequence[str] | None,
    folder: Path | None,
    url: str | None,
    tokenizer: str | None,
    thinking: bool,
    seed: int,
    full: bool,
) -> int:
    """`fidelity prompts`: one line per prompt and length, or the whole text."""
    from fidelity.prompting import order_prompts, tokenizer_for
    from fidelity.prompts.fitting import fit

    section = {
        "count": count,
        "families": tuple(family or ()),
        "folder": folder,
        "tokenizer": tokenizer,
        "thinking": thinking,
    }
    plan = plans.build(
        {"prompts": section, "seed": seed, "target": _target(None if url else "embedded", url)}
    )
    console = Console(highlight=False, soft_wrap=True)
    with tokenizer_for(plan) as encoder:
        console.print(f"tokenizer: {encoder.source}", markup=False)
        for prompt in order_prompts(plan)[:count]:
            for length in lengths:
                fitted = fit(prompt.family, prompt.item, length, encoder)
                pads = f", {fitted.pad_count} x {fitted.pad!r}" if fitted.pad_count else ""
                console.print(
                    f"{fitted.prompt_id}: {len(fitted.ids)} tokens, frame {fitted.frame + 1}, items 1 to "
                    f"{fitted.filler_count}{pads}, answer {fitted.answer!r}",
                    markup=False,
                )
                for message in fitted.messages if full else ():
                    console.print(f"  {message['role']}: {message['content']}", markup=False)
    return 0


def serve(options: dict[str, Any], export: Path | None) -> int:
    """`fidelity serve`: becomes the embedded server, or writes its model and ends."""
    if export is not None:
        from fidelity.refserver.export import export as write
        from fidelity.refserver.weights import load

        write(load(options["profile"]), export)
        sys.stdout.write(f"wrote {export}\n")
        return 0
    given = {name: value for name, value in options.items() if value is not None}
    words = [
        word
        for name, value in given.items()
        for word in (f"--{name}", *([str(value)] if value != "" else []))
    ]
    return os.execv(sys.executable, [sys.executable, "-P", "-m", "fidelity.refserver", *words])


def doctor(model: str, python: str | None, image: str | None, port: int, as_json: bool) -> int:
    """`fidelity doctor`: one line for each thing looked for, once it is known; 0 whatever is missing."""
    from fidelity.doctor import examine

    findings = examine(model, python, image, port)
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
        return 0
    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "missing": "red", "note": "yellow"}
    for finding in findings:
        console.print(f"{finding.state:8}", style=styles[finding.state], end="")
        console.print(f"{finding.name}: {finding.says}", markup=False)
        if finding.remedy:
            console.print(f"{'':8}  {finding.remedy}", markup=False, style="dim")
    return 0


def affected(
    model: str, gpu: str, units: int | None, tps: str, ep: int, sglang: str | None, form: str
) -> int:
    """`fidelity affected`: the table as text, Markdown or JSON. Raises UsageError."""
    from fidelity.affected import table
    from fidelity.gpus import gpu as find_gpu
    from fidelity.model_shapes import find
    from fidelity.report import affected as render

    found = table(find(model), find_gpu(gpu), units=units, tps=_sizes("--tp", tps), ep=ep, sglang=sglang)
    shown = {"json": render.as_json, "markdown": render.as_markdown, "text": render.as_text}
    sys.stdout.write(shown[form](found))
    return 0


def kernel(tps: str, **given: Any) -> int:
    """`fidelity kernel`. Raises FidelityError."""
    from fidelity.kernel.command import Options
    from fidelity.kernel.command import kernel as check

    return check(Options(tps=_sizes("--tp", tps), **given), Console(highlight=False))


def _sizes(flag: str, text: str) -> list[int]:
    """`1,2,4` as numbers. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() or int(word) < 1]
    if wrong:
        raise UsageError(f"{flag} {text}: '{wrong[0]}' is no size", f"give whole numbers, as in {flag} 1,2,4")
    return sorted({int(word) for word in words})


def complain(error: FidelityError) -> int:
    """Say what happened and what to do next, on standard error; returns the exit code."""
    width = shutil.get_terminal_size((100, 24)).columns
    console = Console(stderr=True, highlight=False, width=max(width, 60))
    console.print("error:", style="bold red", end=" ")
    console.print(error.message, markup=False)
    if error.hint:
        console.print(f"  {error.hint}", markup=False, style="dim")
    return error.exit_code


def _target(model: str | None, url: str | None, image: str | None = None) -> dict[str, Any]:
    if url:
        return {"kind": "attach", "url": url}
    if model == "embedded":
        return {"kind": "embedded", "model": "embedded"}
    if image:
        return {"kind": "container", "model": model} if model else {"kind": "container"}
    return {"kind": "process", "model": model} if model else {}
