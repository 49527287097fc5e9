import json
from pathlib import Path

import pytest

from fidelity.errors import ResultsError
from fidelity.manifest import Manifest
from fidelity.report.summary import read_summary, write_summary
from fidelity.verdicts import RunVerdict


def strict(path: Path) -> dict:
    """JSON as the standard has it: NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_what_is_read_is_what_was_written(
    tmp_path: Path, any_verdict: RunVerdict, manifest: Manifest
) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, any_verdict, manifest)
    # NaN is not equal to itself, its repr is.
    assert repr(read_summary(path)) == repr(any_verdict)


def test_floats_that_json_lacks_are_strings(tmp_path: Path, failing: RunVerdict, manifest: Manifest) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, failing, manifest)
    divergences = strict(path)["verdict"]["arms"][0]["cells"][0]["divergences"]
    assert divergences["kl_lower"]["median"] == "inf"
    assert divergences["q_covered"] == "nan"


def test_it_holds_what_repeats_the_run(tmp_path: Path, passing: RunVerdict, manifest: Manifest) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, passing, manifest)
    data = strict(path)
    assert data["schema"] == 1
    assert (data["verdict"]["state"], data["verdict"]["exit_code"]) == ("pass", 0)
    assert data["run"]["argv"] == manifest.argv
    assert data["run"]["plan"]["seed"] == 7
    assert (data["run"]["version"], data["run"]["platform"]) == (manifest.version, "Linux-test")
    assert data["servers"]["none"]["facts"]["grid"] == 64


def test_keys_of_a_newer_version_are_ignored(tmp_path: Path, passing: RunVerdict, manifest: Manifest) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, passing, manifest)
    data = strict(path)
    data["verdict"]["arms"][0]["cells"][0]["novelty"] = 1
    path.write_text(json.dumps(data))
    assert read_summary(path) == passing


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 99, "verdict": {}}', '{"schema": 1, "verdict": {}}']
)
def test_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match="not a summary of this version"):
        read_summary(path)


def test_a_missing_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot read"):
        read_summary(tmp_path / "summary.json")
