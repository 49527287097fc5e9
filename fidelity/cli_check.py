"""`fidelity check`: parse, call, exit code."""

from pathlib import Path
from typing import Annotated

import typer

from fidelity.cli_options import (
    ConfigOption,
    ControlOption,
    CountOption,
    FailFastOption,
    FamilyOption,
    FolderOption,
    GpuOption,
    HitsOption,
    LengthOption,
    MinutesOption,
    OutputOption,
    PositionOption,
    RateOption,
    SeedOption,
    TailOption,
    ThinkingOption,
    TokenizerOption,
)


def check(
    url: Annotated[str, typer.Argument(help="http://HOST:PORT of a running sglang server.")],
    config: ConfigOption = None,
    output: OutputOption = None,
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
    gpu: GpuOption = None,
    header_file: Annotated[
        Path | None, typer.Option("--header-file", help="Headers to send, one `Name: value` a line.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Certificate authorities to trust, in PEM form.")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option("--served-model", help="The name the server must serve its model under.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", help="End as partial after so many requests.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests of any kind per second, at most.")
    ] = None,
    allow_load: Annotated[
        bool, typer.Option("--allow-load", help="Allow a warm-up batch of four requests at once.")
    ] = False,
    assume_idle: Annotated[
        bool, typer.Option("--assume-idle", help="Nobody else uses the server, though it does not say so.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent; compute nothing on the server.")
    ] = False,
) -> None:
    """Check a running server over HTTP, one request in flight, nothing flushed.

    An API key is read from FIDELITY_API_KEY.
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
    shared["max_requests"] = max_requests
    target = {
        "gpu": gpu,
        "header_file": header_file,
        "ca_file": ca_file,
        "served_model": served_model,
        "rate": rate,
        "allow_load": allow_load or None,
        "assume_idle": assume_idle or None,
    }
    if dry_run:
        raise typer.Exit(commands.dry_run(url, config, shared, target))
    raise typer.Exit(commands.run(None, url, None, config, output, None, shared, target))
