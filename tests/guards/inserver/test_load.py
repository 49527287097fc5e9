"""Loading a guard into a process: once, quietly where nothing is asked, and without ever raising."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fidelity.guards.inserver import load as loading
from fidelity.guards.markers import Marker, read_markers
from fidelity.guards.registry import GUARDS

MODULES = sorted(Path(loading.__file__).parent.glob("*.py"))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that has loaded nothing yet; its folder of markers."""
    monkeypatch.setattr(loading, "_marker", None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(loading.MARKERS, str(tmp_path))
    monkeypatch.setenv(loading.GUARD, "splitk")
    return tmp_path


def only(folder: Path) -> Marker:
    (marker,) = read_markers(folder)
    return marker


@pytest.mark.parametrize("name", ["", "none"])
def test_no_guard_leaves_no_trace(fresh: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(loading.GUARD, name)
    finders = list(sys.meta_path)
    loading.load()
    assert read_markers(fresh) == []
    assert sys.meta_path == finders


def test_twice_is_once_and_aiter_is_not_imported(fresh: Path) -> None:
    finders = len(sys.meta_path)
    loading.load()
    loading.load()
    assert len(sys.meta_path) == finders + 1
    assert "aiter" not in sys.modules
    assert only(fresh).waits_for == "aiter.fused_moe"
    assert not only(fresh).active


def test_quietly_until_the_guard_acts(fresh: Path) -> None:
    loading.load(announce=False)
    assert read_markers(fresh) == []
    loading.load()
    assert only(fresh).guard == "splitk"


def test_a_guard_of_no_process_is_told(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.GUARD, "splitq")
    loading.load()
    assert "no guard 'splitq'" in only(fresh).errors[0]


@pytest.mark.parametrize(
    ("name", "change"), [("splitk", "8->4"), ("unsplit", "8->1"), ("block-m32", "16->32")]
)
def test_each_guard_of_aiter_does_its_own(
    fresh: Path, fused_moe: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, change: str
) -> None:
    monkeypatch.setenv(loading.GUARD, name)
    loading.load()
    w1, w2 = np.zeros((4, 16, 2048), np.float32), np.zeros((4, 2048, 8), np.float32)
    hidden, chosen = np.zeros((1, 2048), np.float32), np.zeros((1, 2), int)
    fused_moe.fused_moe(hidden, w1, w2, None, chosen, fused_moe.QuantType.per_1x128)
    marker = only(fresh)
    assert marker.active
    assert marker.guard == name
    assert [shape.endswith(change) for shape in marker.shapes] == [True]


def test_an_aiter_without_the_function_is_told_and_still_imports(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "path" / "aiter"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "fused_moe.py").write_text("present = True\n")
    monkeypatch.syspath_prepend(package.parent)
    loading.load()
    try:
        assert importlib.import_module("aiter.fused_moe").present
    finally:
        for name in ("aiter.fused_moe", "aiter"):
            sys.modules.pop(name, None)
    marker = only(fresh)
    assert not marker.active
    assert "ck_moe_stage1" in marker.errors[0]


def test_what_goes_wrong_in_loading_is_not_raised(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no finders today")

    monkeypatch.setattr(loading, "after_import", broken)
    loading.load()
    assert "no finders today" in capfd.readouterr().err


@pytest.mark.parametrize(("given", "active"), [("1", True), ("0", False), (None, False)])
def test_environment_guards_tell_what_they_were_given(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, active: bool
) -> None:
    monkeypatch.setenv(loading.GUARD, "ksplit1")
    monkeypatch.delenv("AITER_KSPLIT", raising=False)
    if given is not None:
        monkeypatch.setenv("AITER_KSPLIT", given)
    loading.load()
    assert only(fresh).active is active
    assert only(fresh).environment == {"AITER_KSPLIT": given}
    assert bool(only(fresh).errors) is not active


def test_every_guard_of_the_registry_can_be_loaded() -> None:
    in_server = {one.name for one in GUARDS.values() if one.applied == "in-server"}
    assert in_server == set(loading.PATCHES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_server_code_is_python_310_and_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "fidelity_guard"}
