"""`fidelity check` against a real vLLM 0.32.0 on the CPU: dense, and a hybrid whose cold send shares a hit's
last step, healthy and with a faulty MoE at one token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fidelity.observations import Observation, read

if TYPE_CHECKING:
    from conftest import RealServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
PASS, FAIL = 0, 10
PROMPTS = 30
SUSPECT, CONTROL = "L=193 tail=1", "L=225 tail=33"
LONGER = "in a longer prompt"
FEW = ("--hits", "1", "--tail", "1", "--control", "33", "--skip", "decode")


@dataclass(frozen=True)
class Run:
    """One `fidelity check`: what it said and what it wrote."""

    exit_code: int
    output: str
    folder: Path

    @property
    def arm(self) -> dict[str, Any]:
        summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = summary["verdict"]["arms"][0]
        return found

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        return {cell["name"]: cell for cell in self.arm["cells"]}

    def sent(self, role: str, tail: int) -> list[Observation]:
        records = read(self.folder / "observations.jsonl")
        return [one for one in records if one.role == role and one.tail == tail]


def check(server: RealServer, fault: str, folder: Path, *flags: str) -> Run:
    """Run the command line against the server while its MoE layers obey `fault`."""
    server.set_fault(fault)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fidelity", "check", server.url, "--output", str(folder), *FEW, *flags],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    finally:
        server.set_fault("off")
    (folder / "server.json").write_text(json.dumps({**server.about, "fault": fault}), encoding="utf-8")
    return Run(done.returncode, done.stdout + done.stderr, folder)


def states(run: Run) -> dict[str, str]:
    return {name: cell["state"] for name, cell in run.cells.items()}


class TestDense:
    """SmolLM2-135M-Instruct in float32."""

    def test_healthy_passes(self, dense: RealServer, tmp_path: Path) -> None:
        # It is sure of no answer, and its 200 likeliest tokens leave 0.06 nat of the JSD open.
        plan = tmp_path / "plan.yaml"
        plan.write_text("thresholds: {slack: 0.1, sure: 0}", encoding="utf-8")
        run = check(dense, "off", tmp_path / "run", "--config", str(plan))
        assert run.exit_code == PASS, run.output
        assert not any(LONGER in name for name in run.cells)
        hits = run.sent("hit", tail=1)
        assert len(hits) == PROMPTS
        assert all((hit.answer.cached_tokens, hit.tail_seen) == (192, 1) for hit in hits)
        assert all(hit.alone and hit.computed == 1 for hit in hits)


class TestHybrid:
    """Trained weights in bfloat16: cold 193 = 192 then 1, as a hit."""

    def test_healthy_passes_by_the_longer_prompt(self, hybrid: RealServer, tmp_path: Path) -> None:
        run = check(hybrid, "off", tmp_path / "run")
        assert run.exit_code == PASS, run.output
        assert set(states(run).values()) == {"pass"}
        assert run.cells[f"{SUSPECT} {LONGER}"]["exercised"] == PROMPTS
        assert any("same last step" in message for message in run.arm["warnings"])
        for hit in run.sent("hit", tail=1):
            assert (hit.answer.cached_tokens, hit.tail_seen, hit.computed) == (192, 1, 1)

    def test_a_fault_that_repeats_fails_although_cold_and_hit_agree(
        self, hybrid: RealServer, tmp_path: Path
    ) -> None:
        run = check(hybrid, "fixed", tmp_path / "run")
        assert run.exit_code == FAIL, run.output
        assert run.cells[SUSPECT]["corrupt"] == 0
        assert run.cells[SUSPECT]["agreement"] == {"same": PROMPTS}
        assert run.cells[SUSPECT]["divergences"]["jsd_lower"]["maximum"] == 0
        assert {name for name, state in states(run).items() if state == "fail"} == {f"{SUSPECT} {LONGER}"}

    def test_noise_fails(self, hybrid: RealServer, tmp_path: Path) -> None:
        run = check(hybrid, "noise", tmp_path / "run")
        assert run.exit_code == FAIL, run.output
        assert states(run)[f"{SUSPECT} {LONGER}"] == "fail"
        assert {states(run)[name] for name in (CONTROL, f"{CONTROL} {LONGER}")} == {"pass"}

    def test_nan_fails_as_nan_and_not_as_bad_requests(self, hybrid: RealServer, tmp_path: Path) -> None:
        run = check(hybrid, "nan", tmp_path / "run")
        assert run.exit_code == FAIL, run.output
        cell = run.cells[SUSPECT]
        assert (cell["state"], cell["corrupt"]) == ("fail", PROMPTS)
        assert cell["faces"] == {"http nan": PROMPTS}
        assert "NaN" in cell["reason"]
        assert run.arm["failed_requests"] == 0
        assert all(hit.answer.status == 400 for hit in run.sent("hit", tail=1))
        assert {states(run)[name] for name in (CONTROL, f"{CONTROL} {LONGER}")} == {"pass"}


class TestFlat:
    """Every token as likely as any other, at HTTP 200, cold and hit alike."""

    def test_all_equal_logprobs_fail_by_the_flat_row(self, flat: RealServer, tmp_path: Path) -> None:
        run = check(flat, "off", tmp_path / "run", "--prompts", "8")
        assert run.exit_code == FAIL, run.output
        assert list(run.cells[SUSPECT]["rules"]) == ["flat row"]
        assert "flat row" in run.output
        (row,) = run.sent("hit", tail=1)[0].answer.top
        assert {round(value, 4) for _, value in row} == {-12.4225}
