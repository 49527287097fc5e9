"""`fidelity selftest` end to end on two servers, and its exit codes with runs that are made up."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fidelity.errors import ResultsError, UsageError
from fidelity.selftest import command
from fidelity.selftest.command import Options, choose, selftest
from fidelity.selftest.run import Outcome, Task

FIDELITY = Path(sys.executable).with_name("fidelity")


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [FIDELITY, "selftest", *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_fault_and_a_vacuous_server_end_to_end(tmp_path: Path) -> None:
    rows = ("--fault", "split-k-nan in decode", "--fault", "null-counts")
    done = run(tmp_path, "--quick", "--jobs", "2", "--output", "table.md", *rows)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults caught: 1 of 1" in done.stdout
    assert "vacuous servers inconclusive: 1 of 1" in done.stdout
    assert "2/2 " in done.stderr
    assert "split-k-nan in decode" in (tmp_path / "table.md").read_text()
    kept = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    assert {one["row"]: one["holds"] for one in kept} == {"split-k-nan in decode": True, "null-counts": True}
    again = run(tmp_path, "--quick", "--output", "table.md", *rows)
    assert again.returncode == 0
    assert "1/" not in again.stderr


@pytest.mark.slow
def test_quick_holds_as_a_whole(tmp_path: Path) -> None:
    done = run(tmp_path, "--quick", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not as it must be" not in done.stdout


Made = Callable[..., list[Task]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Outcomes without a server: `made(holds)` says what each task comes to, and returns the tasks run."""

    def make(holds: Callable[[Task], bool], stop_after: int | None = None, state: str = "fail") -> list[Task]:
        seen: list[Task] = []

        def outcomes(tasks: Iterable[Task], jobs: int) -> Iterator[Outcome]:
            for task in tasks:
                if len(seen) == stop_after:
                    raise KeyboardInterrupt
                seen.append(task)
                own: dict[str, Any] = {"caught_by": "", "reason": "made up", "diagnoses": ()}
                own |= {"requests": 1, "seconds": 0.1, "cpu": 0.1, "machine": "", "sources": ""}
                yield Outcome(task.key, task.row.name, task.seed, task.rate, state, holds(task), **own)

        monkeypatch.setattr(command, "outcomes", outcomes)
        return seen

    return make


def call(*names: str, **given: Any) -> int:
    return selftest(Options(faults=names, **given), Console(stderr=True))


@pytest.mark.parametrize("missed", ["split-k", "healthy", "null-counts", "split-cold, split-k-nan", "draft"])
def test_one_row_that_does_not_hold_is_exit_10(made: Made, missed: str) -> None:
    made(lambda task: task.row.name != missed)
    assert call() == 10
    made(lambda task: True)
    assert call() == 0


def test_a_row_missed_at_one_rate_is_not_tried_at_smaller_ones(made: Made) -> None:
    seen = made(lambda task: task.row.name != "split-k" or task.rate > 0.2)
    assert call("split-k", "no-state", "healthy", rates=(0.1, 1, 0.5, 0.2), seeds=2) == 0
    tried = [(task.row.name, task.rate) for task in seen if task.seed == 0]
    assert [rate for name, rate in tried if name == "split-k"] == [1, 0.5, 0.2]
    assert [rate for name, rate in tried if name == "no-state"] == [1, 0.5, 0.2, 0.1]
    assert [rate for name, rate in tried if name == "healthy"] == [1]


def test_a_rate_is_left_as_soon_as_too_many_seeds_are_missed(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = made(lambda task: task.rate > 0.5 or task.seed not in (3, 4))
    assert call("split-k", rates=(1, 0.5, 0.2), seeds=20) == 0
    assert [task.seed for task in seen if task.rate == 0.5] == [0, 1, 2, 3, 4]
    assert not [task for task in seen if task.rate == 0.2]
    assert "1 (at 0.5: 3 of 5; not run below)" in capsys.readouterr().out
    made(lambda task: task.rate > 0.5 or task.seed != 3)
    assert call("split-k", rates=(1, 0.5), seeds=20) == 0
    assert "  0.5\n" in capsys.readouterr().out


def test_a_run_that_could_not_run_is_tried_again(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    made(lambda task: False, state="could not run")
    assert call("split-k", state=path) == 10
    seen = made(lambda task: True)
    assert call("split-k", state=path) == 0
    assert len(seen) == 1
    assert len(path.read_text().splitlines()) == 1


def test_an_interrupted_table_keeps_what_is_done(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.md"
    made(lambda task: True, stop_after=2)
    assert call("split-k", "no-state", output=path, seeds=2) == 130
    said = capsys.readouterr().out
    assert "2 of 2 runs of 2 servers" in said
    assert "INTERRUPTED" in said
    assert not path.exists()
    with path.with_suffix(".jsonl").open("a") as file:
        file.write('{"key": "torn')
    seen = made(lambda task: True)
    assert call("split-k", "no-state", output=path, seeds=2) == 0
    assert {(task.row.name, task.seed) for task in seen} == {("split-k", 1), ("no-state", 1)}
    assert path.exists()


def test_a_name_is_a_row_or_a_kind() -> None:
    assert [row.name for row in choose(["hit-jitter"])] == ["hit-jitter"]
    assert [row.name for row in choose(["all-wrong", "decode-after"])] == ["all-wrong", "decode-after"]
    with pytest.raises(UsageError, match="no 'splitk-nan'") as told:
        choose(["splitk-nan"])
    assert "split-k-nan" in (told.value.hint or "")


def test_a_file_of_other_lines_is_told(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text("{}\n")
    with pytest.raises(ResultsError, match="line 1"):
        call("split-k", output=tmp_path / "table.md")


def test_rates_must_be_shares(tmp_path: Path) -> None:
    done = run(tmp_path, "--rates", "1,2")
    assert done.returncode == 2
    assert "'2' is no share" in done.stderr
