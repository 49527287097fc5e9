"""`fidelity plan`: parse, call, exit code."""

from typing import Annotated, Any

import typer

from fidelity.cli_options import (
    CuOption,
    DeterministicOption,
    FaultOption,
    GpuOption,
    Many,
    NoiseOption,
    ProfileOption,
    SpeculativeOption,
    StrategyOption,
    with_plan_options,
)


@with_plan_options
def plan(
    model: Annotated[str | None, typer.Option("--model", help="A model to serve, or `embedded`.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="A server that runs already; not asked.")] = None,
    guard: Annotated[Many, typer.Option("--guard", help="One arm for each; repeatable.")] = None,
    fault: FaultOption = None,
    strategy: StrategyOption = None,
    cu: CuOption = None,
    noise: NoiseOption = None,
    profile: ProfileOption = None,
    speculative: SpeculativeOption = None,
    deterministic: DeterministicOption = None,
    gpu: GpuOption = None,
    latency: Annotated[
        float, typer.Option("--latency", min=1e-6, help="Seconds that one request takes.")
    ] = 0.1,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="As many prompts as this time allows.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: str | None = None,
    shared: dict[str, Any] | None = None,
) -> None:
    """Show what a plan can and cannot see, before anything is sent. Takes the options of `run`.

    With --max-rate and no --prompts it takes the fewest prompts that can bound that rate.
    """
    from fidelity import commands

    target = {
        "fault": fault,
        "strategy": strategy,
        "cu": cu,
        "noise": noise,
        "profile": profile,
        "speculative": speculative,
        "deterministic": deterministic,
        "gpu": gpu,
    }
    given = model or (None if url or config else "embedded")
    raise typer.Exit(
        commands.plan(given, url, guard, config, shared or {}, target, latency, minutes, as_json)
    )
