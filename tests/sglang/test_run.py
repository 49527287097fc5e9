"""`fidelity run` starts a real sglang 0.5.21 on the CPU itself, with and without a guard in its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fidelity.observations import read

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
STANDINS = Path(__file__).parent / "standins"
PASS, FAIL = 0, 10
# Those of serve.sh, without the address: that is fidelity's business here.
SERVER = (
    *("--device", "cpu", "--context-length", "4096", "--attention-backend", "torch_native"),
    *("--grammar-backend", "none", "--mamba-radix-cache-strategy", "extra_buffer", "--page-size", "64"),
    *("--max-total-tokens", "131072", "--max-running-requests", "4", "--max-mamba-cache-size", "400"),
    *("--mem-fraction-static", "0.2", "--enable-cache-report", "--sleep-on-idle", "--dtype", "bfloat16"),
)


def run(python: Path, model: Path, folder: Path, fault: str, *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output, and the manifest's record of the only arm."""
    (folder / "fault").write_text(fault)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{STANDINS}{os.pathsep}{REPOSITORY}",
        "FIDELITY_FAULT_FILE": str(folder / "fault"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    words = ["run", "--model", str(model), "--python", str(python), "--output", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "fidelity", *words, "--hits", "1", *flags, "--", *SERVER],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    out = done.stdout + done.stderr
    assert "Traceback" not in out
    assert not left_behind(folder)
    (record,) = json.loads((folder / "run" / "manifest.json").read_text())["arms"].values()
    return done.returncode, out, record


def left_behind(folder: Path) -> list[psutil.Process]:
    """Processes that still have this run's environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FIDELITY_FAULT_FILE") == str(folder / "fault"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_healthy_server_passes(sglang_python: Path, quiz_model: Path, tmp_path: Path) -> None:
    cells = ("--tail", "1", "--control", "2")
    code, out, record = run(sglang_python, quiz_model, tmp_path, "off", "--prompts", "30", *cells)
    assert code == PASS, out
    facts = record["facts"]
    assert (facts["version"], facts["grid"], facts["strategy"]) == ("0.5.21", 64, "extra_buffer")
    assert [(cell["length"], cell["tail"]) for cell in record["cells"]] == [(193, 1), (194, 2)]
    assert record["markers"] == []
    assert "ready to roll" in (tmp_path / "run" / "server-none.log").read_text()


def test_the_retreat_guard_goes_in_and_proves_itself(
    sglang_python: Path, quiz_model: Path, tmp_path: Path
) -> None:
    """On a server whose MoE is NaN at one token: no tail of one is left, and what is cached is right."""
    code, out, record = run(
        sglang_python, quiz_model, tmp_path, "nan", "--guard", "retreat", "--prompts", "30", "--tail", "1"
    )
    assert code == PASS, out
    (scheduler,) = (line for line in record["markers"] if line.startswith("scheduler pid "))
    assert "Req._compute_max_prefix_len" in scheduler
    records = read(tmp_path / "run" / "observations.jsonl")
    suspects = [one for one in records if one.role == "hit" and one.kind == "suspect"]
    assert len(suspects) == 30
    assert min(one.tail_seen or 0 for one in suspects) >= 2
    assert all(one.answer.faces == {} for one in suspects)
