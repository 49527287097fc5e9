"""`fidelity check`: parse, call, exit code."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fidelity.cli_options import (
    CaFileOption,
    EngineOption,
    GpuOption,
    HeaderFileOption,
    Many,
    OutputOption,
    PaceOption,
    ServedModelOption,
    TimeoutOption,
    with_plan_options,
)


@with_plan_options
def check(
    urls: Annotated[
        Many,
        typer.Argument(metavar="URL...", help="http://HOST:PORT of a server, or of each replica."),
    ] = None,
    urls_file: Annotated[
        Path | None,
        typer.Option("--urls-file", help="Addresses, one a line; # begins a comment."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Replicas that answer behind the one address.")
    ] = None,
    replica_header: Annotated[
        str | None,
        typer.Option("--replica-header", help="The header that tells which. [default: names in use]"),
    ] = None,
    output: OutputOption = None,
    engine: EngineOption = None,
    gpu: GpuOption = None,
    header_file: HeaderFileOption = None,
    ca_file: CaFileOption = None,
    served_model: ServedModelOption = None,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", help="End as partial after so many requests.")
    ] = None,
    timeout: TimeoutOption = None,
    rate: PaceOption = None,
    allow_load: Annotated[
        bool,
        typer.Option("--allow-load", help="Allow several requests at once, as batches need."),
    ] = False,
    allow_sampling: Annotated[
        bool,
        typer.Option("--allow-sampling", help="Allow decode at temperature 1: NaN there kills some servers."),
    ] = False,
    assume_idle: Annotated[
        bool, typer.Option("--assume-idle", help="Nobody else uses the server, though it does not say so.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent; compute nothing on the server.")
    ] = False,
    config: str | None = None,
    shared: dict[str, Any] | None = None,
) -> None:
    """Check a running server over HTTP, one request in flight, nothing flushed; several are replicas, each
    checked, and held against each other.

    An API key is read from FIDELITY_API_KEY.
    """
    from fidelity import commands, replicas

    url, *others = replicas.addresses(urls or [], urls_file)
    shared = dict(shared or {})
    shared["max_requests"] = max_requests
    if others:
        shared["arms"] = replicas.arms([url, *others])
    target = {
        "engine": engine,
        "gpu": gpu,
        "header_file": header_file,
        "ca_file": ca_file,
        "served_model": served_model,
        "replicas": number,
        "replica_header": replica_header,
        "timeout": timeout,
        "rate": rate,
        "allow_load": allow_load or None,
        "allow_sampling": allow_sampling or None,
        "assume_idle": assume_idle or None,
    }
    if dry_run:
        raise typer.Exit(commands.dry_run(url, config, shared, target))
    raise typer.Exit(commands.run(None, url, None, config, output, None, shared, target))
