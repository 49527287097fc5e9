"""Runs made by hand: a manifest, and the observations of one cell or several."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation
from fidelity.probes.cells import Cell
from fidelity.reproduce.choose import Reproduction, reproduction
from fidelity.verdicts import FAIL, CellVerdict

TOP = [[(5, -0.1), (6, -3.0), (7, -4.0)]]
NAN = {"output_ids": [0], "text": "!", "top": [[(0, float("nan"))]], "faces": {"null": 1}, "values": 4}
FACTS = {"engine": "sglang", "version": "0.5.21", "model": "M", "simulated": False}
BODY = re.compile(r"-d '(.*)'$", re.MULTILINE)


@pytest.fixture
def manifest() -> Manifest:
    plan = plans.build({"target": {"kind": "attach", "url": "http://server:30000"}})
    cells = [
        Cell(f"L={length} tail={length - 192}", "suspect", length, length - 192, "") for length in (193, 194)
    ]
    return Manifest("run-1", "", plan, arms={"none": ArmRecord("none", 1, FACTS, cells)})


@pytest.fixture
def pair(observation: Callable[..., Observation]) -> Callable[..., list[Observation]]:
    """The cold send of a prompt and its hit, which `hit` changes."""

    def make(prompt: str, start: int = 0, length: int = 193, **hit: Any) -> list[Observation]:
        shared = {"prompt": prompt, "group": f"{prompt}@{length}", "length": length}
        shared |= {"prompt_tokens": length, "top": TOP, "cell": f"L={length} tail={length - 192}"}
        ids = [start % 9 + 1] * length
        cold = {"role": "cold", "order": start, "input_ids": ids, "namespace": f"{prompt}/a"}
        later = {"order": start + 3, "namespace": f"{prompt}/a", "asked": TOP, **hit}
        return [
            observation(**{**shared, **cold, "cached_tokens": 0, "expected_cached": 0}),
            observation(**{**shared, **later, "expected_cached": 192}),
        ]

    return make


@pytest.fixture
def cell() -> Callable[..., CellVerdict]:
    def make(name: str = "L=193 tail=1", probe: str = "resend", **own: Any) -> CellVerdict:
        given = {"kind": "suspect", "state": FAIL, "reason": "corrupt", "length": 193, "tail": 1, **own}
        return CellVerdict(arm="none", probe=probe, name=name, **given)

    return make


@pytest.fixture
def chosen(manifest: Manifest) -> Callable[..., Reproduction]:
    """The reproduction of a cell that has one."""

    def choose(cell: CellVerdict, observations: list[Observation]) -> Reproduction:
        found = reproduction(cell, manifest, "LABEL", observations)
        assert found is not None
        return found

    return choose


@pytest.fixture
def bodies() -> Callable[[str], list[dict[str, Any]]]:
    """The JSON of each curl line, with k in place of the shell's KEY."""

    def read(script: str) -> list[dict[str, Any]]:
        return [json.loads(body.replace("'\"$KEY\"'", "k")) for body in BODY.findall(script)]

    return read
