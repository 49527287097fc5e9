"""`fidelity selftest`: parse, call, exit code."""

import os
from pathlib import Path
from typing import Annotated

import typer


def selftest(
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller plans, one seed, rate 1: under three minutes on 2 cores.")
    ] = False,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="A line of the table, or a kind of fault; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each line and rate.")] = 1,
    control_seeds: Annotated[
        int | None,
        typer.Option("--control-seeds", min=1, help="Runs of each healthy server. [default: --seeds]"),
    ] = None,
    rates: Annotated[
        str,
        typer.Option("--rates", help="Shares of corrupt prompts, such as 1,0.5,0.2; 1 is always among them."),
    ] = "1",
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Runs at once. [default: one for each core]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Write Markdown; finished runs are kept beside it and not run again."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="The file that keeps finished runs. [default: beside --output]"),
    ] = None,
) -> None:
    """Run every fault of the embedded engine past the probes, and healthy servers beside them.

    Exit 0 when each fault that one server can show is caught, each healthy server passes and each that proves
    nothing is inconclusive for that reason; 10 when not.
    """
    from rich.console import Console

    from fidelity.selftest.command import Options
    from fidelity.selftest.command import selftest as run

    options = Options(
        faults=fault or (),
        quick=quick,
        seeds=seeds,
        control_seeds=control_seeds,
        rates=_rates(rates),
        jobs=jobs or os.cpu_count() or 1,
        output=output,
        state=state,
    )
    raise typer.Exit(run(options, Console(stderr=True, highlight=False)))


def _rates(text: str) -> list[float]:
    """`1,0.5` as numbers. Raises UsageError."""
    from fidelity.errors import UsageError

    found = []
    for word in text.split(","):
        try:
            rate = float(word)
        except ValueError:
            rate = 0.0
        if not 0 < rate <= 1:
            raise UsageError(
                f"--rates {text}: '{word.strip()}' is no share", "give numbers in (0, 1], as in 1,0.5"
            )
        found.append(rate)
    return found
