"""Impact and tasks on the embedded engine: a fault that spoils hits alone harms users, and a guard helps."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Done, run_command

PATTERNS = ["regenerate", "single token", "multiple choice", "json", "tool call", "long answer"]
ASK = (
    "I have reviewed quiz items {}. Now the next question: what is the capital of {}? "
    "Reply with only the city name."
)
FITTED = {
    "France": "Paris",
    "Portugal": "Lisbon",
    "Norway": "Oslo",
    "Greece": "Athens",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Austria": "Vienna",
    "Denmark": "Copenhagen",
    "Sweden": "Stockholm",
}
NATURAL = {"Poland": "Warsaw", "Finland": "Helsinki"}


def plan(fault: str, *arms: str, **over: Any) -> dict[str, Any]:
    return {
        "target": {"kind": "embedded", "model": "embedded", "fault": fault},
        "arms": [{"name": arm, "guard": arm} for arm in arms],
        "prompts": {"count": 10},
        "impact": {"prompts": 10, "tokens": 8},
        "tasks": {"files": ["cities.jsonl"], "tokens": 6},
        "resend": {"warmup_sends": 2, "warmup_tokens": 4},
        **over,
    }


def run_plan(folder: Path, data: dict[str, Any]) -> Done:
    asked = [("{filler}", FITTED), ("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", NATURAL)]
    lines = [
        json.dumps({"question": ASK.format(filler, land), "answer": city}) + "\n"
        for filler, pairs in asked
        for land, city in pairs.items()
    ]
    (folder / "cities.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "plan.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return run_command(folder, "run", "--config", "plan.yaml")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Done:
    data = plan("split-k-extend", "none", "splitk", probes=["impact", "tasks"])
    return run_plan(tmp_path_factory.mktemp("impact"), data)


def readings(cell: dict[str, Any]) -> dict[str, float]:
    return {one["name"]: one["value"] for one in cell["readings"]}


def test_every_pattern_and_the_task_are_harmed(faulty: Done) -> None:
    assert faulty.code == 10, faulty.out + faulty.err
    states = {cell["name"]: cell["state"] for cell in faulty.arm("none")["cells"]}
    assert states == dict.fromkeys([*PATTERNS, "cities"], "fail")
    for name in PATTERNS:
        cell = faulty.cell(name)
        assert (cell["corrupt"], cell["exercised"], cell["tails"]) == (10, 10, {"1": 10}), cell["reason"]
        assert readings(cell)["share changed, second cold send"] == 0
    for name in ("json", "tool call"):
        found = readings(faulty.cell(name))
        assert (found["parse failures, cold"], found["parse failures, hit"]) == (0, 10)
        assert (found["accuracy, cold"], found["accuracy, hit"]) == (1, 0)
    choice = readings(faulty.cell("multiple choice"))
    first, second = "margin of the first letter, cold, median", "margin of the first letter, hit, median"
    assert choice[first] > 2 * choice[second]


def test_questions_with_another_tail_are_still_right(faulty: Done) -> None:
    hits = [obs for obs in faulty.observations if obs["cell"] == "cities" and obs["role"] == "hit"]
    right = {
        kind: sum(
            obs["answer"]["text"] == obs["expected_text"]
            for obs in hits
            if obs["arm"] == "none" and obs["kind"] == kind
        )
        for kind in ("suspect", "control")
    }
    assert right == {"suspect": 0, "control": 2}


def test_a_guard_recovers(faulty: Done) -> None:
    cells = faulty.arm("splitk")["cells"]
    assert {cell["name"]: cell["state"] for cell in cells} == dict.fromkeys([*PATTERNS, "cities"], "pass")
    cities = faulty.cell("cities", "splitk")
    assert (
        "accuracy cold 1, hit 1 (0 lost, 0 gained); hits 13 of 13, 11 with a suspect tail" in cities["reason"]
    )
    assert cities["reason"].endswith("a loss of less than 10 of 13 answers would not have been seen")


def test_a_healthy_server_passes_with_the_shipped_questions(tmp_path: Path) -> None:
    small = {"impact": {"prompts": 5, "tokens": 4}, "tasks": {"tokens": 4}}
    done = run_plan(tmp_path, plan("none", "none", probes=["impact", "tasks"], **small))
    assert done.code == 0, done.out + done.err
    states = {cell["name"]: cell["state"] for cell in done.arm("none")["cells"]}
    assert states == dict.fromkeys([*PATTERNS, "arithmetic", "facts"], "pass")
    assert "accuracy cold 1, hit 1 (0 lost, 0 gained); hits 22 of 22" in done.cell("facts")["reason"]


def test_a_broken_question_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": \n', encoding="utf-8")
    done = run_plan(tmp_path, plan("none", "none", probes=["tasks"], tasks={"files": ["own.jsonl"]}))
    assert done.code == 2
    assert "own.jsonl, line 2: not valid JSON" in done.out + done.err
