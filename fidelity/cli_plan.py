"""`fidelity plan`: parse, call, exit code."""

from typing import Annotated

import typer

from fidelity.cli_options import (
    ConfigOption,
    ControlOption,
    CountOption,
    CuOption,
    FailFastOption,
    FamilyOption,
    FaultOption,
    FolderOption,
    GpuOption,
    HitsOption,
    LengthOption,
    Many,
    MinutesOption,
    NoiseOption,
    PositionOption,
    ProfileOption,
    RateOption,
    SeedOption,
    StrategyOption,
    TailOption,
    ThinkingOption,
    TokenizerOption,
)


def plan(
    model: Annotated[str | None, typer.Option("--model", help="A model to serve, or `embedded`.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="A server that runs already; not asked.")] = None,
    guard: Annotated[Many, typer.Option("--guard", help="One arm for each; repeatable.")] = None,
    config: ConfigOption = None,
    prompts: CountOption = None,
    hits: HitsOption = None,
    position: PositionOption = None,
    tail: TailOption = None,
    control: ControlOption = None,
    length: LengthOption = None,
    family: FamilyOption = None,
    prompt_folder: FolderOption = None,
    tokenizer: TokenizerOption = None,
    thinking: ThinkingOption = None,
    seed: SeedOption = None,
    max_minutes: MinutesOption = None,
    fail_fast: FailFastOption = None,
    max_rate: RateOption = None,
    fault: FaultOption = None,
    strategy: StrategyOption = None,
    cu: CuOption = None,
    noise: NoiseOption = None,
    profile: ProfileOption = None,
    gpu: GpuOption = None,
    latency: Annotated[
        float, typer.Option("--latency", min=1e-6, help="Seconds that one request takes.")
    ] = 0.1,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="As many prompts as this time allows.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a plan can and cannot see, before anything is sent. Takes the options of `run`.

    With --max-rate and no --prompts it takes the fewest prompts that can bound that rate.
    """
    from fidelity import commands

    shared = commands.flags(
        prompts=prompts,
        hits=hits,
        position=position,
        tail=tail,
        control=control,
        length=length,
        family=family,
        prompt_folder=prompt_folder,
        tokenizer=tokenizer,
        thinking=thinking,
        seed=seed,
        max_minutes=max_minutes,
        fail_fast=fail_fast,
        max_rate=max_rate,
    )
    target = {
        "fault": fault,
        "strategy": strategy,
        "cu": cu,
        "noise": noise,
        "profile": profile,
        "gpu": gpu,
    }
    given = model or (None if url or config else "embedded")
    raise typer.Exit(commands.plan(given, url, guard, config, shared, target, latency, minutes, as_json))
