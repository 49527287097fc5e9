from pathlib import Path

import pytest

import fidelity.paths
from fidelity.errors import UsageError
from fidelity.paths import data_dir


def test_source_checkout() -> None:
    assert (data_dir("prompts") / "capital.yaml").is_file()


def test_wheel_first_then_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fidelity"
    monkeypatch.setattr(fidelity.paths, "__file__", str(package / "paths.py"))
    with pytest.raises(UsageError, match="the folder 'prompts' that comes with fidelity is missing"):
        data_dir("prompts")
    (tmp_path / "prompts").mkdir()
    assert data_dir("prompts") == tmp_path / "prompts"
    (package / "data" / "prompts").mkdir(parents=True)
    assert data_dir("prompts") == package / "data" / "prompts"
