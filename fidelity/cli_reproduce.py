"""`fidelity reproduce`: parse, call, exit code."""

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    cell: Annotated[
        str | None,
        typer.Argument(
            help='As in the reports, such as "L=193 tail=1" or "decode T=0". [default: the first that fails]'
        ),
    ] = None,
    arm: Annotated[
        str | None, typer.Option("--arm", help="Of this arm. [default: the first where the cell fails]")
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="URL", help="Send the requests to this server instead.")
    ] = None,
    header_file: Annotated[
        Path | None, typer.Option("--header-file", help="With --replay: as in `fidelity check`.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="With --replay: as in `fidelity check`.")
    ] = None,
) -> None:
    """Print the fewest requests that show a failing cell again, as a script for bash.

    With --replay they are sent: exit 10 when the answers are corrupt again, 0 when they are right, 11 when
    the path was not taken, 3 when nothing answers.
    """
    from fidelity.reproduce import command

    raise typer.Exit(command.reproduce(directory, cell, arm, replay, header_file, ca_file))
