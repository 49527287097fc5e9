"""Outcomes of runs summed up, and the table of them."""

from typing import Any

from fidelity.selftest.catalogue import ROWS
from fidelity.selftest.run import Outcome, Task, from_json, to_json
from fidelity.selftest.summary import NOTHING, confusion, summarise
from fidelity.selftest.table import as_markdown, as_text

BY_NAME = {row.name: row for row in ROWS}


def outcome(row: str, seed: int = 0, rate: float = 1.0, **given: Any) -> Outcome:
    own: dict[str, Any] = {
        "state": "fail",
        "holds": True,
        "caught_by": "resend L=193 tail=1",
        "reason": "why",
    }
    own |= {
        "diagnoses": (),
        "requests": 100,
        "seconds": 4.0,
        "cpu": 3.0,
        "machine": "2 cores",
        "sources": "ab",
    }
    own |= given
    return Outcome(key=f"{row}{seed}{rate}", row=row, seed=seed, rate=rate, **own)


def rates(caught: dict[float, int], runs: int = 20) -> list[Outcome]:
    return [
        outcome("split-k", seed, rate, holds=seed < count)
        for rate, count in caught.items()
        for seed in range(runs)
    ]


def test_the_smallest_rate_needs_nearly_every_seed() -> None:
    (line,) = summarise(ROWS, rates({1.0: 20, 0.5: 19, 0.2: 18}))
    assert line.smallest == 0.5
    assert (line.held, line.runs) == (20, 20)


def test_a_rate_below_one_that_was_missed_does_not_count() -> None:
    (line,) = summarise(ROWS, rates({1.0: 20, 0.5: 10, 0.2: 20}))
    assert line.smallest == 1.0
    assert summarise(ROWS, rates({1.0: 10}))[0].smallest is None


def test_of_tied_hypotheses_the_expected_one_counts() -> None:
    row = BY_NAME["zeroed-state"]
    tied = outcome(row.name, diagnoses=("stored KV", row.diagnosis))
    other = outcome(row.name, 1, diagnoses=("decode only",))
    (line,) = summarise(ROWS, [tied, other])
    assert line.right == 1
    assert confusion([line], [tied, other])[row.diagnosis] == {row.diagnosis: 1, "decode only": 1}


def test_a_healthy_server_has_no_diagnosis() -> None:
    healthy = outcome("healthy", state="pass", caught_by="")
    lines = summarise(ROWS, [healthy])
    assert confusion(lines, [healthy]) == {NOTHING: {NOTHING: 1}}


def test_the_table_hides_nothing() -> None:
    found = [
        outcome("split-k", diagnoses=("one-token forward (M=1) kernel",)),
        outcome("all-wrong", diagnoses=("common to cold and hit",)),
        outcome("healthy", state="inconclusive", holds=False, caught_by="", reason="too few | prompts"),
    ]
    lines = summarise(ROWS, found)
    text, markdown = as_text(lines, found), as_markdown(lines, found, "fidelity selftest")
    for said in ("SIMULATED", "Needs --reference", "all-wrong", "faults caught: 1 of 1", "F17"):
        assert said in text
        assert said in markdown
    assert "not as it must be: healthy, 1 of 1: seed 0: inconclusive: too few | prompts" in text
    assert "negative controls passed: 0 of 1" in text
    assert "fidelity selftest" in markdown
    assert "Made by version" in markdown
    assert "sources ab, on 2 cores." in markdown
    assert "diagnoses right: 2 of 2 runs" in markdown


def test_an_outcome_survives_its_file() -> None:
    own = outcome("split-k", diagnoses=("a", "b"))
    assert from_json(to_json(own)) == own


def test_the_key_is_of_the_plan() -> None:
    task = Task(BY_NAME["split-k"], 0)
    assert task.key == Task(BY_NAME["split-k"], 0).key
    others = [
        Task(BY_NAME["split-k"], 1),
        Task(BY_NAME["split-k"], 0, 0.5),
        Task(BY_NAME["split-k"], 0, 1.0, True),
    ]
    assert len({task.key, *(one.key for one in others)}) == 4
