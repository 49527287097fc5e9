"""The installed command, run as a user runs it: a subprocess in a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).with_name("fidelity")


@dataclass(frozen=True)
class Done:
    """A finished command and the run directory it was told to write."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())["verdict"]

    @property
    def observations(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "observations.jsonl").read_text().splitlines()]

    def arm(self, name: str) -> dict[str, Any]:
        return next(arm for arm in self.summary["arms"] if arm["name"] == name)

    def cell(self, name: str, arm: str = "none") -> dict[str, Any]:
        return next(cell for cell in self.arm(arm)["cells"] if cell["name"] == name)

    def hits(self, length: int, arm: str = "none") -> list[dict[str, Any]]:
        return [
            obs
            for obs in self.observations
            if obs["role"] == "hit" and obs["length"] == length and obs["arm"] == arm
        ]


Fidelity = Callable[..., Done]


def environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}


def run_command(folder: Path, *words: str, output: Path | None = None, timeout: float = 240) -> Done:
    directory = output or folder / "run"
    extra = ["--output", str(directory)] if words[0] in ("run", "check") and "--resume" not in words else []
    done = subprocess.run(
        [COMMAND, *words, *extra],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr, directory)


@pytest.fixture
def fidelity(tmp_path: Path) -> Fidelity:
    """`fidelity(words...)` in an empty folder; its run directory is `run` there unless `output` says
    otherwise."""

    def call(*words: str, output: Path | None = None) -> Done:
        return run_command(tmp_path, *words, output=output)

    return call


@pytest.fixture(scope="session")
def fidelity_once(tmp_path_factory: pytest.TempPathFactory) -> Fidelity:
    """As `fidelity`, each distinct command run once a session."""
    known: dict[tuple[str, ...], Done] = {}

    def call(*words: str) -> Done:
        if words not in known:
            known[words] = run_command(tmp_path_factory.mktemp("fidelity"), *words)
        return known[words]

    return call


Here = Callable[..., Done]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """As `fidelity`, in this process: quicker, and parts of it can be changed by the test."""
    from fidelity.cli import main

    def call(*words: str) -> Done:
        directory = tmp_path / "run"
        more = ["--output", str(directory)] if words[0] in ("run", "check") else []
        at = words.index("--") if "--" in words else len(words)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "400")
        monkeypatch.setattr(sys, "argv", ["fidelity", *words[:at], *more, *words[at:]])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err, directory)

    return call
