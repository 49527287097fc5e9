"""The folder and the environment that a guarded server is started with."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from fidelity.guards.apply import environment, write_folder
from fidelity.guards.registry import GUARDS, guard

FOLDER, MARKERS = Path("/guard"), Path("/markers")


def test_the_folder_holds_a_plugin(tmp_path: Path) -> None:
    assert write_folder(tmp_path / "new" / "folder", "0.5.21") == tmp_path / "new" / "folder"
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "new" / "folder")])
    assert found.metadata["Name"] == "fidelity_guard"
    (plugin,) = found.entry_points
    assert (plugin.group, plugin.name, plugin.value) == (
        "sglang.srt.plugins",
        "fidelity_guard",
        "fidelity_guard.load:load",
    )
    names = {path.name for path in (tmp_path / "new" / "folder" / "fidelity_guard").iterdir()}
    assert {"__init__.py", "load.py", "split_k.py", "marker.py"} <= names
    assert "sitecustomize.py" not in names


@pytest.mark.parametrize(
    ("version", "site"), [("0.5.9", True), ("0.5.12.post2", True), (None, True), ("0.5.13", False)]
)
def test_sitecustomize_only_where_plugins_may_be_missing(
    tmp_path: Path, version: str | None, site: bool
) -> None:
    write_folder(tmp_path, version)
    assert (tmp_path / "sitecustomize.py").exists() is site


def test_a_folder_can_be_written_again(tmp_path: Path) -> None:
    write_folder(tmp_path, "0.5.21")
    (tmp_path / "fidelity_guard" / "load.py").write_text("old")
    write_folder(tmp_path, "0.5.21")
    assert "def load" in (tmp_path / "fidelity_guard" / "load.py").read_text()


def test_the_path_is_put_first_and_kept() -> None:
    given = environment(guard("splitk"), FOLDER, MARKERS, {"PYTHONPATH": "/a:/b", "HOME": "/root"})
    assert given == {
        "FIDELITY_GUARD": "splitk",
        "FIDELITY_GUARD_MARKERS": "/markers",
        "PYTHONPATH": os.pathsep.join(["/guard", "/a:/b"]),
    }
    for existing in ({}, {"PYTHONPATH": ""}):
        path = environment(guard("splitk"), FOLDER, MARKERS, existing)["PYTHONPATH"]
        assert path == "/guard", "an empty entry would be the current folder"


@pytest.mark.parametrize(
    ("allowed", "given"),
    [
        ("", None),
        ("other", "other,fidelity_guard"),
        ("a, b", "a,b,fidelity_guard"),
        ("a,fidelity_guard", None),
    ],
)
def test_a_list_of_plugins_lets_the_guard_in(allowed: str, given: str | None) -> None:
    set_to = environment(guard("splitk"), FOLDER, MARKERS, {"SGLANG_PLUGINS": allowed})
    assert set_to.get("SGLANG_PLUGINS") == given


def test_environment_guards_bring_their_variables() -> None:
    given = environment(guard("no-aiter"), FOLDER, MARKERS, {})
    assert given["SGLANG_USE_AITER"] == "0"
    assert given["FIDELITY_GUARD"] == "no-aiter"
    assert "PYTHONPATH" in given


@pytest.mark.parametrize("name", [one.name for one in GUARDS.values() if not one.in_processes])
def test_arms_without_code_in_the_server_disarm_what_is_there(name: str) -> None:
    existing = {"FIDELITY_GUARD": "splitk", "PYTHONPATH": "/guard"}
    assert environment(guard(name), FOLDER, MARKERS, existing) == {
        "FIDELITY_GUARD": "none",
        "FIDELITY_GUARD_MARKERS": "/markers",
    }
