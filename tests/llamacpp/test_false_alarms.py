"""The false-alarm study: 200 prompts of a healthy SmolLM2, sure of them or not, and no cell may fail.

    pytest -m slow tests/llamacpp/test_false_alarms.py

The plan is study.yaml; what came of it is in docs/runs/llamacpp.md.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLAN = Path(__file__).parent / "study.yaml"


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_200_prompts_of_a_healthy_model_fail_no_cell(smollm2: Path, serve: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with serve(smollm2) as url:
        command = [
            sys.executable,
            "-m",
            "fidelity",
            "check",
            url,
            "--config",
            str(PLAN),
            "--output",
            str(run),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5300, check=False)
    cells = json.loads((run / "summary.json").read_text(encoding="utf-8"))["verdict"]["arms"][0]["cells"]
    assert done.returncode in (0, 11), done.stdout[-3000:]
    assert {cell["exercised"] for cell in cells} == {200}
    assert not [cell["name"] for cell in cells if cell["state"] == "fail"]
    # Unsure of an answer, four bits can fall either way at another batch shape.
    assert max(cell["corrupt"] for cell in cells) <= 4
