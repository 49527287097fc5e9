"""The command line: parse, call, exit code."""

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fidelity import __version__
from fidelity.cli_check import check
from fidelity.cli_options import (
    CuOption,
    DeterministicOption,
    FamilyOption,
    FaultOption,
    FolderOption,
    GpuOption,
    Many,
    NoiseOption,
    OutputOption,
    ProfileOption,
    RateOption,
    SpeculativeOption,
    StrategyOption,
    with_plan_options,
)
from fidelity.cli_plan import plan
from fidelity.cli_probe_cache import probe_cache
from fidelity.cli_reproduce import reproduce
from fidelity.cli_selftest import selftest
from fidelity.cli_shapes import affected, kernel

app = typer.Typer(
    help="Does an LLM server compute the right next-token distribution on its cached paths?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.command()
@with_plan_options
def run(
    model: Annotated[str | None, typer.Option("--model", help="A model to serve, or `embedded`.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="A server that runs already.")] = None,
    guard: Annotated[
        Many, typer.Option("--guard", help="One arm for each: none, splitk, unsplit, retreat; repeatable.")
    ] = None,
    output: OutputOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.")
    ] = None,
    gpu: GpuOption = None,
    fault: FaultOption = None,
    strategy: StrategyOption = None,
    cu: CuOption = None,
    noise: NoiseOption = None,
    profile: ProfileOption = None,
    speculative: SpeculativeOption = None,
    deterministic: DeterministicOption = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Serve the model in this container image.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", help="docker, podman or nerdctl. [default: the first found]")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter of the environment that has sglang.")
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option("--start-timeout", help="Seconds until the server must be ready. [default: 3600]"),
    ] = None,
    print_command: Annotated[
        bool, typer.Option("--print-command", help="Show the command of each arm's server, and end.")
    ] = False,
    flags: Annotated[
        Many, typer.Argument(metavar="[-- SGLANG FLAGS]", help="Flags of your own for the sglang server.")
    ] = None,
    config: str | None = None,
    shared: dict[str, Any] | None = None,
) -> None:
    """Start a server for each guard, send cold and cached prompts, report and judge."""
    from fidelity import commands

    shared = shared or {}
    target = {
        "gpu": gpu,
        "fault": fault,
        "strategy": strategy,
        "cu": cu,
        "noise": noise,
        "profile": profile,
        "speculative": speculative,
        "deterministic": deterministic,
        "image": image,
        "runtime": runtime,
        "python": python,
        "start_timeout": start_timeout,
        "flags": flags or None,
    }
    if print_command:
        raise typer.Exit(commands.print_command(model, url, guard, config, output, shared, target))
    raise typer.Exit(commands.run(model, url, guard, config, output, resume, shared, target))


app.command()(check)
app.command()(affected)
app.command()(kernel)
app.command()(plan)
app.command()(probe_cache)
app.command()(reproduce)
app.command()(selftest)


@app.command()
def prompts(
    length: Annotated[list[int], typer.Option("--length", help="Templated tokens; repeatable.")],
    count: Annotated[int, typer.Option("--prompts", help="How many prompts.")] = 30,
    family: FamilyOption = None,
    prompt_folder: FolderOption = None,
    url: Annotated[str | None, typer.Option("--url", help="Tokenize with this server.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="A local folder or hub id. [default: the embedded one]")
    ] = None,
    thinking: Annotated[bool, typer.Option("--thinking/--no-thinking")] = False,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Show the whole text of each prompt.")] = False,
) -> None:
    """Show the prompts that would be sent at these lengths, with their token counts."""
    from fidelity import commands

    raise typer.Exit(
        commands.show_prompts(length, count, family, prompt_folder, url, tokenizer, thinking, seed, full)
    )


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    max_rate: RateOption = None,
    kappa: Annotated[
        float | None, typer.Option("--kappa", help="Times its control's own JSD that a cell may exceed it.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Error rate of the run's tests of a shift.")
    ] = None,
) -> None:
    """Judge a recorded run again, without a server, and rewrite its reports.

    Thresholds other than the run's own are told in the reports.
    """
    from fidelity import commands

    raise typer.Exit(commands.report(directory, {"max_rate": max_rate, "kappa": kappa, "alpha": alpha}))


@app.command()
def serve(
    port: Annotated[int, typer.Option("--port", help="0 picks a free one.")] = 30000,
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    guard: Annotated[str, typer.Option("--guard", help="none, splitk, unsplit, retreat.")] = "none",
    fault: Annotated[
        str, typer.Option("--fault", help="split-k-nan, split-k, split-k-extend, none.")
    ] = "split-k-nan",
    strategy: Annotated[str, typer.Option("--strategy", help="extra_buffer or no_buffer.")] = "extra_buffer",
    cu: Annotated[int, typer.Option("--cu", help="Compute units: 16, 32 or 64.")] = 16,
    noise: Annotated[float, typer.Option("--noise", help="Run-to-run noise.")] = 0.0,
    profile: Annotated[str, typer.Option("--profile", help="quiz-state, quiz-kv, random.")] = "quiz-state",
    speculative: SpeculativeOption = None,
    deterministic: DeterministicOption = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    page_size: Annotated[
        int | None, typer.Option("--page-size", help="[default: 64, under no_buffer 1]")
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the model as a Hugging Face folder, and end.")
    ] = None,
) -> None:
    """Serve the embedded engine by hand; it speaks sglang's API."""
    from fidelity import commands

    options: dict[str, Any] = {
        "port": port,
        "host": host,
        "guard": guard,
        "fault": fault,
        "strategy": strategy,
        "cu": cu,
        "noise": noise,
        "profile": profile,
        "seed": seed,
        "page-size": page_size or (1 if strategy == "no_buffer" else 64),
        "speculative": "NEXTN" if speculative else None,
        "deterministic": "" if deterministic else None,
    }
    raise typer.Exit(commands.serve(options, export))


@app.command()
def doctor(
    model: Annotated[
        str, typer.Option("--model", help="The model to look for: a preset, a hub id or a folder.")
    ] = "Qwen3.6-35B-A3B-FP8",
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter of the environment that has sglang.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Look for sglang and aiter in this container image.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 30000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine can run, and what to do about what is missing. Changes nothing."""
    from fidelity import commands

    raise typer.Exit(commands.doctor(model, python, image, port, as_json))


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fidelity {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: an error meant for the user is one message and its exit code, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Answers hold any script; a terminal that cannot show one must not end the run.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as exc:
        from fidelity.errors import FidelityError

        if not isinstance(exc, FidelityError):
            raise
        from fidelity.commands import complain

        sys.exit(complain(exc))
