"""Whole runs on an engine that is bit-identical on all paths and on one that is not, judged again."""

import re
from pathlib import Path

import pytest

from fidelity import manifest
from fidelity.judging import exact
from fidelity.observations import read
from fidelity.verdicts import CellVerdict

from .conftest import run_command

PLAN = """
target: {{kind: embedded, model: embedded, fault: none, deterministic: {deterministic}}}
exact: true
probes: [resend, decode]
prompts: {{count: 1, include: []}}
resend: {{positions: [64], suspects: [1], controls: [2], hits: 1, warmup_sends: 1, warmup_tokens: 4}}
decode: {{tokens: 8, prompts: 1, sampling: false}}
"""

DIFFERENCE = r"\S+, token 6[56], logprob of id \d+: (\S+) cold, (\S+) hit, difference (\S+) nat"


def cells(folder: Path, *, deterministic: bool) -> dict[str, CellVerdict]:
    (folder / "plan.yaml").write_text(PLAN.format(deterministic=str(deterministic).lower()))
    directory = run_command(folder, "run", "--config", "plan.yaml").directory
    run, records = manifest.load(directory), read(directory / "observations.jsonl")
    found = exact.judge(run.plan, run.plan.arms[0], run.arms["none"], records, run.plan.thresholds)
    return {cell.name: cell for cell in found}


def test_a_deterministic_server_is_bit_identical(tmp_path: Path) -> None:
    found = cells(tmp_path, deterministic=True)
    assert {name: (cell.state, cell.exercised) for name, cell in found.items()} == {
        "cold again": ("pass", 2),
        "hits": ("pass", 2),
        "decode": ("pass", 2),
    }


def test_another_server_differs_in_its_hits_and_the_place_is_named(tmp_path: Path) -> None:
    found = cells(tmp_path, deterministic=False)
    assert found["cold again"].state == "pass"
    assert (found["hits"].state, found["hits"].corrupt) == ("fail", 2)
    said = re.fullmatch(DIFFERENCE, found["hits"].notes[0])
    assert said
    cold, hit, difference = map(float, said.groups())
    assert 0 < difference < 1e-4
    assert difference == pytest.approx(abs(cold - hit), rel=0.01)
