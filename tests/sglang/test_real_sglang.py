"""`fidelity check` against a real sglang 0.5.21 on the CPU: healthy, and with a faulty MoE at one token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from fidelity.observations import Observation, read

if TYPE_CHECKING:
    from conftest import RealServer

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
PASS, FAIL, INCONCLUSIVE = 0, 10, 11
PROMPTS, HITS = 30, 2
CELLS = ("--tail", "1", "--control", "2", "--control", "33")


@dataclass(frozen=True)
class Run:
    """One `fidelity check`: what it said, what it wrote, and what the server logged meanwhile."""

    exit_code: int
    output: str
    folder: Path
    prefills: list[tuple[int, int, int]]

    @property
    def records(self) -> list[Observation]:
        return read(self.folder / "observations.jsonl")

    def sent(self, role: str, tail: int | None = None) -> list[Observation]:
        return [one for one in self.records if one.role == role and tail in (None, one.tail)]

    def cell(self, tail: int) -> dict[str, Any]:
        summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        (cell,) = (cell for cell in summary["verdict"]["arms"][0]["cells"] if cell["tail"] == tail)
        found: dict[str, Any] = cell
        return found


def check(server: RealServer, fault: str, folder: Path, *flags: str) -> Run:
    """Run the command line against the server while its MoE layers obey `fault`."""
    mark = server.log_size()
    server.set_fault(fault)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fidelity", "check", server.url, "--output", str(folder), *flags],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    finally:
        server.set_fault("off")
    prefills = server.prefills(mark)
    about = {**server.about, "fault": fault, "prefills": prefills}
    (folder / "server.json").write_text(json.dumps(about), encoding="utf-8")  # for record.py
    return Run(done.returncode, done.stdout + done.stderr, folder, prefills)


def assert_log_agrees(run: Run) -> None:
    """The tails computed from the answers are those of the server's own log, request by request."""
    health_probe = (1, 1, 0)
    logged = [prefill for prefill in run.prefills if prefill != health_probe]
    assert logged == [(1, one.tail_seen, one.answer.cached_tokens) for one in run.records]
    assert logged.count((1, 1, 192)) >= PROMPTS * HITS


def assert_all_finite(records: Iterable[Observation]) -> None:
    for one in records:
        assert not one.answer.faces, (one.role, one.cell, one.prompt, one.answer.faces)
        assert one.answer.values > 0


def assert_nan_found(run: Run) -> None:
    """Every tail-1 hit is counted as NaN, and nothing else is."""
    assert run.exit_code == FAIL, run.output
    hits = run.sent("hit", tail=1)
    assert len(hits) == PROMPTS * HITS
    for hit in hits:
        assert hit.reached
        assert (hit.answer.cached_tokens, hit.tail_seen) == (192, 1)
        assert hit.answer.faces == {"null": hit.answer.values}
        assert hit.answer.output_ids == [0]
    cell = run.cell(tail=1)
    assert cell["state"] == "fail"
    assert (cell["corrupt"], cell["exercised"], cell["prompts"]) == (PROMPTS,) * 3
    assert (cell["corrupt_sends"], cell["sends"]) == (len(hits),) * 2
    assert cell["faces"] == {"null": cell["values"]}
    for tail in (2, 33):
        control = run.cell(tail=tail)
        assert (control["corrupt"], control["exercised"], control["faces"]) == (0, PROMPTS, {})
    assert_all_finite(
        run.sent("cold") + run.sent("cold2") + run.sent("hit", tail=2) + run.sent("hit", tail=33)
    )
    for shown in run.sent("show-hit"):
        assert shown.answer.text is not None
        assert shown.answer.text.startswith("!!!!")
    assert "!!!!" in (run.folder / "report.md").read_text(encoding="utf-8")
    assert "!!!!" in run.output
    junit = ElementTree.parse(run.folder / "junit.xml").getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == [
        "resend L=193 tail=1 (suspect)"
    ]


class TestTrainedWeights:
    """The embedded engine's own weights, served by a real sglang."""

    def test_healthy_passes(self, quiz_server: RealServer, tmp_path: Path) -> None:
        run = check(quiz_server, "off", tmp_path / "run")
        assert run.exit_code == PASS, run.output
        assert_log_agrees(run)
        assert_all_finite(run.records)
        hits = run.sent("hit", tail=1)
        assert len(hits) == PROMPTS * HITS
        assert all(hit.reached and hit.tail_seen == 1 for hit in hits)
        first_thread = [hit for hit in hits if hit.prompt == "capital/france"]
        assert [hit.answer.text for hit in first_thread] == ["Paris"] * HITS

    def test_nan_fails_and_is_readable(self, quiz_server: RealServer, tmp_path: Path) -> None:
        run = check(quiz_server, "nan", tmp_path / "run", *CELLS)
        assert_nan_found(run)
        assert_log_agrees(run)
        shown = {one.prompt: one.answer.text for one in run.sent("show-cold")}
        assert shown["capital/france"].startswith("Paris")

    def test_stale_memory_fails_although_no_text_moves(self, quiz_server: RealServer, tmp_path: Path) -> None:
        """The answer is sure: only the logprobs move, and those of its control do not."""
        run = check(quiz_server, "stale", tmp_path / "run", *CELLS)
        assert run.exit_code == FAIL, run.output
        assert_all_finite(run.records)
        cell = run.cell(tail=1)
        assert (cell["state"], cell["exercised"]) == ("fail", PROMPTS)
        assert cell["agreement"] == {"same": PROMPTS * HITS}
        assert cell["reason"].startswith("the logprobs moved: mean |delta logprob|")
        for tail in (2, 33):
            assert run.cell(tail=tail)["state"] == "pass"


class TestRandomWeights:
    """A tiny random model: no prompt reaches a cold top-1 probability of 0.9."""

    def test_healthy_is_no_false_alarm(self, random_server: RealServer, tmp_path: Path) -> None:
        run = check(random_server, "off", tmp_path / "run", *CELLS)
        assert run.exit_code in (PASS, INCONCLUSIVE), run.output
        assert "unsure model" in run.output
        assert_log_agrees(run)
        assert_all_finite(run.records)
        for tail in (1, 2, 33):
            cell = run.cell(tail=tail)
            assert (cell["corrupt"], cell["exercised"], cell["prompts"]) == (0, PROMPTS, PROMPTS)

    def test_nan_fails(self, random_server: RealServer, tmp_path: Path) -> None:
        run = check(random_server, "nan", tmp_path / "run", *CELLS)
        assert_nan_found(run)
        assert_log_agrees(run)

    def test_stale_memory_fails(self, random_server: RealServer, tmp_path: Path) -> None:
        """Finite and confident garbage: only the comparison with the cold answer finds it."""
        run = check(random_server, "stale", tmp_path / "run", *CELLS)
        assert run.exit_code == FAIL, run.output
        assert_log_agrees(run)
        assert_all_finite(run.records)
        cell = run.cell(tail=1)
        assert (cell["state"], cell["exercised"]) == ("fail", PROMPTS)
        # what is added changes every answer, and now and then leaves the favourite where it was
        assert cell["corrupt"] >= 0.8 * PROMPTS
        assert cell["divergences"]["kl_lower"]["median"] > 1
        for tail in (2, 33):
            control = run.cell(tail=tail)
            assert (control["corrupt"], control["exercised"]) == (0, PROMPTS)
            assert control["divergences"]["kl_lower"]["maximum"] < 1e-3
