import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fidelity.errors import ResultsError
from fidelity.manifest import Manifest
from fidelity.report.console import print_verdict
from fidelity.report.write import write_all
from fidelity.verdicts import RunVerdict

FILES = ("summary.json", "junit.xml", "report.md")


def outputs(directory: Path, verdict: RunVerdict, manifest: Manifest) -> dict[str, str]:
    """The text of every output."""
    write_all(directory, verdict, manifest)
    screen = StringIO()
    print_verdict(Console(file=screen, width=100), verdict, directory)
    return {"console": screen.getvalue()} | {name: (directory / name).read_text("utf-8") for name in FILES}


def test_nothing_but_the_reports_is_left(tmp_path: Path, any_verdict: RunVerdict, manifest: Manifest) -> None:
    write_all(tmp_path, any_verdict, manifest)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


def test_a_simulated_run_says_so_everywhere(
    tmp_path: Path, any_verdict: RunVerdict, manifest: Manifest
) -> None:
    for name, text in outputs(tmp_path, any_verdict, manifest).items():
        assert "SIMULATED: embedded engine, not AMD hardware" in text, name


def test_a_real_run_never_says_simulated(tmp_path: Path, real: RunVerdict, manifest: Manifest) -> None:
    for name, text in outputs(tmp_path, real, manifest).items():
        assert "SIMULATED" not in text, name
        assert "sglang 0.5.21 serving" in text, name


def test_the_reason_is_everywhere(tmp_path: Path, any_verdict: RunVerdict, manifest: Manifest) -> None:
    for name, text in outputs(tmp_path, any_verdict, manifest).items():
        assert any_verdict.reason in text, name


def test_reports_are_written_over(
    tmp_path: Path, failing: RunVerdict, passing: RunVerdict, manifest: Manifest
) -> None:
    write_all(tmp_path, failing, manifest)
    assert "FAIL (exit 10)" not in outputs(tmp_path, passing, manifest)["report.md"]


@pytest.mark.parametrize("name", FILES)
def test_an_unwritable_place_is_a_results_error(
    tmp_path: Path, passing: RunVerdict, manifest: Manifest, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ResultsError, match=name):
        write_all(tmp_path, passing, manifest)


def test_a_missing_directory_is_a_results_error(
    tmp_path: Path, passing: RunVerdict, manifest: Manifest
) -> None:
    with pytest.raises(ResultsError, match="No such file"):
        write_all(tmp_path / "gone", passing, manifest)


def test_importing_the_writers_loads_no_template_engine_and_no_xml() -> None:
    code = (
        "import sys, fidelity.report.write, fidelity.report.console;"
        "print([m for m in ('jinja2', 'junitparser', 'rich.progress') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
