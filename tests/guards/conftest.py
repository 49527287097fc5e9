"""The stand-in aiter: imported here, or in the processes of a stand-in server."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from fidelity.guards.apply import environment, write_folder
from fidelity.guards.inserver.marker import Marker as ProcessMarker
from fidelity.guards.markers import Marker, read_markers
from fidelity.guards.registry import guard

STANDIN = Path(__file__).parent / "standin"


@dataclass(frozen=True)
class Served:
    """What the stand-in server left: each scheduler's largest error by batch size, the markers, the log."""

    errors: list[dict[str, float]]
    markers: list[Marker]
    log: str

    def wrong(self) -> set[str]:
        """Batch sizes that any scheduler computed wrongly."""
        return {rows for one in self.errors for rows, error in one.items() if not error < 1e-4}

    def roles(self) -> list[str]:
        return sorted(marker.role for marker in self.markers)


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Run the stand-in server under a guard; `version` decides how the folder is laid out."""

    def run(
        name: str,
        *flags: str,
        version: str | None = "0.5.10",
        python: str | Path = sys.executable,
        given: dict[str, str] | None = None,
        path: str = "",
    ) -> Served:
        folder, markers, answers = (tmp_path / kind for kind in ("guard", "markers", "answers"))
        markers.mkdir()
        answers.mkdir()
        write_folder(folder, version)
        before = os.pathsep.join(filter(None, [path, str(STANDIN)]))
        existing = {**os.environ, "PYTHONPATH": before, **(given or {})}
        env = {**existing, **environment(guard(name), folder, markers, existing)}
        done = subprocess.run(
            [python, STANDIN / "server.py", answers, *flags],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        errors = [json.loads(answer.read_text()) for answer in answers.glob("*.json")]
        return Served(errors, read_markers(markers), done.stderr)

    return run


@pytest.fixture
def fused_moe(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in `aiter.fused_moe`, fresh, imported into this process."""
    monkeypatch.syspath_prepend(STANDIN)
    finders = list(sys.meta_path)
    yield importlib.import_module("aiter.fused_moe")
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        del sys.modules[name]


@pytest.fixture
def marker(tmp_path: Path) -> ProcessMarker:
    """This process's own marker, under guard `splitk`."""
    folder = tmp_path / "own-markers"
    folder.mkdir()
    return ProcessMarker("splitk", folder)
