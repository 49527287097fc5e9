"""The batch probe on the embedded engine: each fault fails its own sizes, a ragged fill its own hits."""

from pathlib import Path

import pytest

from .conftest import Done, run_command

PLAN = """
target: {{kind: embedded, model: embedded, fault: {fault}, cu: {cu}}}
arms: [{{name: none}}{arms}]
probes: [batch]
prompts: {{count: 6, include: []}}
batch: {{sizes: [1, 2, 3, 6], rounds: 5, tokens: 4, ragged: 6}}
resend: {{warmup_sends: 4, warmup_tokens: 16}}
"""
CELLS = ["M=1", "M=2", "M=3", "M=6", "ragged rows", "ragged fill"]
GUARDED = ", {name: splitk, guard: splitk}"


def batched(folder: Path, fault: str, cu: int = 16, arms: str = "") -> Done:
    (folder / "plan.yaml").write_text(PLAN.format(fault=fault, cu=cu, arms=arms))
    return run_command(folder, "run", "--config", "plan.yaml")


def failed(done: Done, arm: str = "none") -> list[str]:
    """The cells that failed; all others passed."""
    cells = {cell["name"]: cell["state"] for cell in done.arm(arm)["cells"]}
    assert list(cells) == CELLS
    assert set(cells.values()) <= {"pass", "fail"}
    return [name for name, state in cells.items() if state == "fail"]


@pytest.mark.parametrize(
    ("cu", "cells"), [(32, ["M=1", "M=2"]), pytest.param(16, ["M=1"], marks=pytest.mark.slow)]
)
def test_a_fault_of_small_batches_fails_the_sizes_it_reaches_and_the_guard_recovers(
    tmp_path: Path, cu: int, cells: list[str]
) -> None:
    done = batched(tmp_path, "split-k-nan", cu, GUARDED)
    assert done.code == 10, done.err
    assert failed(done) == cells
    assert failed(done, "splitk") == []
    assert [cell["name"] for cell in done.arm("none")["cells"][:4] if cell["kind"] == "suspect"] == cells


def test_rows_of_others_are_recognised_in_every_batch_of_several(tmp_path: Path) -> None:
    done = batched(tmp_path, "swapped-row")
    assert done.code == 10, done.err
    assert failed(done) == ["M=2", "M=3", "M=6", "ragged rows"]
    cell = done.cell("M=6")
    rows = [obs for obs in done.observations if obs["role"] == "row" and obs["cell"] == "M=6"]
    assert cell["rules"] == {"cross-talk": 6}
    assert f"it answers as the row of {rows[1]['prompt']}" in cell["reason"]
    assert {obs["formed"] for obs in rows} == {"log"}


def test_a_ragged_fill_that_keeps_wrong_states_shows_in_the_hits_after_it_and_noise_nowhere(
    tmp_path: Path,
) -> None:
    done = batched(tmp_path, "'ragged-state,batch-noise'")
    assert done.code == 10, done.err
    assert failed(done) == ["ragged fill"]
