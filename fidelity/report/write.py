"""All report files of a run."""

from pathlib import Path

from fidelity.manifest import Manifest
from fidelity.report.cells import Scripts
from fidelity.report.junit import write_junit
from fidelity.report.markdown import write_markdown
from fidelity.report.summary import write_summary
from fidelity.verdicts import RunVerdict


def write_all(
    directory: Path, verdict: RunVerdict, manifest: Manifest, scripts: Scripts | None = None
) -> None:
    """Write summary.json, junit.xml and report.md into an existing run directory. Raises ResultsError."""
    write_summary(directory / "summary.json", verdict, manifest)
    write_junit(directory / "junit.xml", verdict, scripts or {})
    write_markdown(directory / "report.md", verdict, manifest, scripts or {})
