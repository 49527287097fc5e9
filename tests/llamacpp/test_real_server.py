"""`fidelity check` against llama.cpp's own server: healthy models pass, broken and moved states do not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.timeout(600)  # the model computes some 8,000 tokens

POSITION = 48
"""Where the hits resume: shorter ones leave no room for some prompts."""


def check(url: str, folder: Path, count: int, **thresholds: float) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code of a check of `count` prompts, and its cells by name."""
    plan = {
        "name": "llamacpp-tests",
        "probes": ["resend"],
        "prompts": {"count": count},
        "resend": {
            "positions": [POSITION],
            "suspects": [1],
            "controls": [33],
            "hits": 1,
            "warmup_sends": 2,
            "warmup_tokens": 4,
        },
        "thresholds": {"sure": 0, "max_rate": 0.46, **thresholds},
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    run = folder / "run"
    command = [sys.executable, "-m", "fidelity", "check", url, "--config", str(path), "--output", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert (run / "summary.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return done.returncode, {cell["name"]: cell for cell in summary["verdict"]["arms"][0]["cells"]}


def test_a_healthy_dense_model_passes_though_its_hits_differ_from_cold(
    smollm2: Path, serve: Any, tmp_path: Path
) -> None:
    with serve(smollm2) as url:
        code, cells = check(url, tmp_path, 5)
    assert (code, {cell["state"] for cell in cells.values()}) == (0, {"pass"})
    assert cells["L=49 tail=1"]["cached"] == {str(POSITION): 5}
    assert cells["L=81 tail=33"]["divergences"]["jsd_lower"]["median"] > 1e-5
    assert cells["L=81 moved"]["cached"] == {"0": 5}


def test_a_healthy_hybrid_model_passes_at_one_token_though_its_own_tail_is_four(
    hybrid: Any, serve: Any, tmp_path: Path
) -> None:
    with serve(hybrid()) as url:
        code, cells = check(url, tmp_path, 5)
    assert (code, {cell["state"] for cell in cells.values()}) == (0, {"pass"})
    assert cells["L=49 tail=1"]["tails"] == {"1": 5}


def test_weights_that_are_no_number_fail(hybrid: Any, serve: Any, tmp_path: Path) -> None:
    with serve(hybrid("--nan")) as url:
        code, cells = check(url, tmp_path, 5)
    assert code == 10
    assert cells["L=49 tail=1"]["faces"]["null"] > 0


def test_states_moved_from_behind_other_words_fail(smollm2: Path, serve: Any, tmp_path: Path) -> None:
    with serve(smollm2, "n_cache_reuse=16", "cache_ram_mib=0") as url:
        code, cells = check(url, tmp_path, 8, max_rate=0.35, alpha=0.02)
    assert code == 10
    moved = cells["L=81 moved"]
    assert (moved["state"], moved["cached"]) == ("fail", {"80": 8})
    assert "behind other words" in moved["reason"]
    assert cells["L=49 tail=1"]["state"] == "pass"
