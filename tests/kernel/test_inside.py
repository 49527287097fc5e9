"""What runs inside an image: its Python may be 3.10, with torch and nothing of ours installed."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import fidelity
from fidelity.kernel.work import Failed, read

PACKAGE = Path(fidelity.__file__).resolve().parent
HOST_ONLY = {"cases", "verdict", "report", "launch", "command"}


def inside(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """This Python without any installed package, as an image's that has not even torch."""
    (folder / "package").mkdir(exist_ok=True)
    (folder / "package" / "fidelity").symlink_to(PACKAGE)
    return subprocess.run(
        [sys.executable, "-S", *words],
        env={"PYTHONPATH": str(folder / "package")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nothing_but_the_standard_library_is_needed_to_start(tmp_path: Path) -> None:
    done = inside(tmp_path, "-c", "import fidelity.kernel.__main__, fidelity.kernel.harness")
    assert done.returncode == 0, done.stderr


def test_without_torch_the_answer_says_so(work: Any, tmp_path: Path) -> None:
    work().save(tmp_path / "work.json")
    done = inside(tmp_path, "-m", "fidelity.kernel", "work.json", "answers.jsonl")
    assert done.returncode == 3, done.stderr
    (answer,) = read(tmp_path / "answers.jsonl")
    assert isinstance(answer, Failed)
    assert "torch cannot be imported here" in answer.message
    assert "--image" in answer.hint


def test_its_syntax_is_python_3_10() -> None:
    paths = [path for path in (PACKAGE / "kernel").glob("*.py") if path.stem not in HOST_ONLY]
    assert len(paths) >= 12
    for path in [*paths, PACKAGE / "shapes.py", PACKAGE / "__init__.py", PACKAGE / "guards" / "__init__.py"]:
        ast.parse(path.read_text(), feature_version=(3, 10))
