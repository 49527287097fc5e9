"""Changing a module as soon as it is imported, whoever finds it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from fidelity.guards.inserver.late import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `late_one` whose __init__ imports a name from its module `inner`."""
    folder = tmp_path / "late_one"
    folder.mkdir()
    (folder / "__init__.py").write_text("from late_one.inner import value as seen\n")
    (folder / "inner.py").write_text("value = 'before'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "late_one"]:
        del sys.modules[name]


def change(module: ModuleType) -> None:
    module.value = "after"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("package")
def test_the_importer_sees_the_changed_module_only() -> None:
    assert after_import("late_one.inner", change) is False
    assert "late_one" not in sys.modules, "nothing is imported for it"
    assert importlib.import_module("late_one").seen == "after"


@pytest.mark.usefixtures("package")
def test_a_loaded_module_is_changed_now_and_again_when_it_is_reloaded() -> None:
    inner = importlib.import_module("late_one.inner")
    assert after_import("late_one.inner", change) is True
    assert inner.value == "after"
    inner.value = "by someone else"
    importlib.reload(inner)
    assert inner.value == "after"


def test_an_import_that_fails_is_tried_again(package: Path) -> None:
    (package / "inner.py").write_text("raise ImportError('not yet')\n")
    after_import("late_one.inner", change)
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("late_one.inner")
    (package / "inner.py").write_text("value = 'before, the second time'\n")
    assert importlib.import_module("late_one.inner").value == "after"


def test_a_finder_of_an_editable_install_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "elsewhere.py"
    source.write_text("value = 'before'\n")

    class Editable(importlib.abc.MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            if fullname != "late_editable":
                return None
            return importlib.util.spec_from_file_location(fullname, source)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable()])
    after_import("late_editable", change)
    try:
        assert importlib.import_module("late_editable").value == "after"
    finally:
        sys.modules.pop("late_editable", None)


def test_a_module_that_is_not_there_is_not_found() -> None:
    before = list(sys.meta_path)
    try:
        after_import("late_missing", change)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("late_missing")
    finally:
        sys.meta_path[:] = before
