"""`fidelity probe-cache`: parse, call, exit code."""

from typing import Annotated

import typer

from fidelity.cli_options import (
    CaFileOption,
    EngineOption,
    HeaderFileOption,
    PaceOption,
    ServedModelOption,
    TimeoutOption,
    TokenizerOption,
)


def probe_cache(
    url: Annotated[str, typer.Argument(help="http://HOST:PORT of a running server.")],
    engine: EngineOption = None,
    header_file: HeaderFileOption = None,
    ca_file: CaFileOption = None,
    served_model: ServedModelOption = None,
    tokenizer: TokenizerOption = None,
    rate: PaceOption = None,
    timeout: TimeoutOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent; compute nothing on the server.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find a server's cache grid from the cached tokens of at most 12 sends, one in flight, nothing flushed.

    An API key is read from FIDELITY_API_KEY.
    """
    from fidelity import plan, probe_cache

    target = {
        "kind": "attach",
        "url": url,
        "engine": engine,
        "header_file": header_file,
        "ca_file": ca_file,
        "served_model": served_model,
        "rate": rate,
        "timeout": timeout,
    }
    given = plan.merge({}, {"target": target, "prompts": {"tokenizer": tokenizer}})
    raise typer.Exit(probe_cache.probe_cache(plan.build(given), dry_run=dry_run, as_json=as_json))
