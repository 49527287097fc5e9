"""The scripts of a run's failing cells, for its reports."""

from collections.abc import Sequence
from pathlib import Path

from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.report.cells import Key, key_of
from fidelity.reproduce.choose import reproduction
from fidelity.reproduce.command import text_of
from fidelity.reproduce.failing import PROBES, command, failing_cells
from fidelity.verdicts import RunVerdict

LONGEST = 20_000
"""Characters of a script that a report holds; of a longer one it names the command that prints it."""


def scripts(
    directory: Path, verdict: RunVerdict, manifest: Manifest, observations: Sequence[Observation]
) -> dict[Key, str]:
    """Those of each arm with the cell to show first at the front. A cell that no request of the record shows
    has none."""
    found = {}
    for cell in failing_cells(verdict):
        if cell.probe not in PROBES:
            continue
        shown = reproduction(cell, manifest, verdict.label, observations)
        if shown is not None:
            printed_by = command(directory, cell, verdict)
            text = text_of(shown, manifest, directory, printed_by)
            found[key_of(cell)] = text if len(text) <= LONGEST else f"{printed_by}\n"
    return found
