"""Speed of reading and judging a large run, by hand: pytest tests/test_benchmark.py -m slow."""

from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fidelity.judge import judge
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation, Recorder, read
from fidelity.plan import Arm, RunPlan
from fidelity.verdicts import PASS

from .calibration.simulate import Server, cells, observe

ARMS, PROMPTS = 28, 300
"""With 3 cells and 4 sends each: 100 800 observations."""


@pytest.fixture(scope="module")
def records() -> list[Observation]:
    found: list[Observation] = []
    rng = np.random.default_rng(0)
    for number in range(ARMS):
        part = observe(Server("threads"), PROMPTS, 2, cells(), rng)
        for one in part:
            one.arm = f"arm {number}"
        found += part
    return found


@pytest.mark.slow
def test_judging_100_000_observations(benchmark: BenchmarkFixture, records: list[Observation]) -> None:
    names = [f"arm {number}" for number in range(ARMS)]
    plan = RunPlan(arms=tuple(Arm(name=name) for name in names))
    manifest = Manifest("r", "s", plan, status="complete")
    manifest.arms = {name: ArmRecord("none", 1, cells=cells()) for name in names}
    verdict = benchmark.pedantic(judge, (manifest, records), rounds=3)
    assert len(records) > 100_000
    assert verdict.state == PASS, verdict.reason


@pytest.mark.slow
def test_reading_100_000_observations(
    benchmark: BenchmarkFixture, records: list[Observation], tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "observations.jsonl")
    for one in records:
        recorder.add(one)
    recorder.close()
    found = benchmark.pedantic(read, (recorder.path,), rounds=2)
    assert found == records
