"""`fidelity affected`: parse, call, exit code."""

from typing import Annotated

import typer

ModelOption = Annotated[
    str, typer.Option("--model", help="A preset, a model folder or the path of a config.json.")
]
GpuOption = Annotated[
    str, typer.Option("--gpu", help="mi350x, mi355x, mi300x, mi325x or mi308x; its compute units count.")
]
UnitsOption = Annotated[
    int | None, typer.Option("--cu", min=1, help="Compute units that aiter sees. [default: the GPU's]")
]
TpOption = Annotated[str, typer.Option("--tp", help="Tensor-parallel sizes, separated by commas.")]
EpOption = Annotated[int, typer.Option("--ep", min=1, help="Expert-parallel size.")]


def affected(
    model: ModelOption,
    gpu: GpuOption = "mi350x",
    cu: UnitsOption = None,
    tp: TpOption = "",
    ep: EpOption = 1,
    sglang: Annotated[
        str | None, typer.Option("--sglang", help="The server's version, such as 0.5.22.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Show which batch sizes of a model the split-K fault reaches, and the tails to probe. Sends nothing."""
    from fidelity import commands

    form = "json" if as_json else "markdown" if markdown else "text"
    raise typer.Exit(commands.affected(model, gpu, cu, tp, ep, sglang, form))
