"""`fidelity affected` and `fidelity kernel`: parse, call, exit code."""

from pathlib import Path
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


def kernel(
    model: ModelOption,
    tp: TpOption = "",
    gpu: GpuOption = "mi350x",
    cu: UnitsOption = None,
    ep: EpOption = 1,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", help="aiter; or torch, a stand-in with the fault; or torch-clean, without."
        ),
    ] = "aiter",
    guard: Annotated[
        list[str] | None, typer.Option("--guard", help="none, splitk or unsplit. [default: none and splitk]")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Run inside this container image.")] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", help="docker, podman or nerdctl. [default: the first found]")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter of the environment that has aiter or torch.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Of the stand-in: auto, cpu or cuda.")] = "auto",
    repeats: Annotated[
        int, typer.Option("--repeats", min=0, help="Timed samples per call; 0 for no timing.")
    ] = 20,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    max_minutes: Annotated[float, typer.Option("--max-minutes", min=0.01)] = 60.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Folder of the check. [default: results/<time>-kernel-...]"),
    ] = None,
    print_command: Annotated[
        bool, typer.Option("--print-command", help="Show the command that would be run, and end.")
    ] = False,
) -> None:
    """Check fused_moe at small batches against fp32, on memory full of NaN and of large values."""
    from fidelity import commands

    raise typer.Exit(
        commands.kernel(
            model=model,
            tps=tp,
            gpu=gpu,
            units=cu,
            ep=ep,
            backend=backend,
            guards=tuple(guard or ("none", "splitk")),
            image=image,
            runtime=runtime,
            python=python,
            device=device,
            repeats=repeats,
            seed=seed,
            minutes=max_minutes,
            output=output,
            print_command=print_command,
        )
    )
