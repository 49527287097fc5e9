"""Faults that cold and cached sends share, end to end: a reference is saved, and runs are held against it."""

from pathlib import Path

import pytest

from .conftest import Done, Here, run_command

PLAN = """
target: {kind: embedded}
probes: [resend]
prompts: {count: 5}
thresholds: {max_rate: 0.5}
resend: {hits: 1, suspects: [1], controls: [33], warmup_sends: 2, warmup_tokens: 4}
"""
CELLS = ("L=193 cold against the reference", "L=225 cold against the reference")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy server's cold answers; the plan that asked for them lies beside."""
    folder = tmp_path_factory.mktemp("reference")
    plan, path = folder / "plan.yaml", folder / "healthy.jsonl"
    plan.write_text(PLAN)
    words = ("--config", str(plan), "--fault", "none", "--save-reference", str(path))
    done = run_command(folder, "run", *words)
    assert done.code == 0
    assert "20 answers of arm none" in " ".join(done.out.split())
    return path


@pytest.fixture
def against(saved: Path, here: Here) -> Here:
    """A run of the same plan, held against what was saved."""

    def call(*words: str) -> Done:
        plan = str(saved.with_name("plan.yaml"))
        return here("run", "--config", plan, "--reference", str(saved), *words)

    return call


def states(done: Done) -> list[str]:
    return [done.cell(name)["state"] for name in CELLS]


def test_a_healthy_server_passes(against: Here) -> None:
    done = against("--fault", "none", "--noise", "0.001", "--seed", "7")
    assert (done.code, states(done)) == (0, ["pass", "pass"])
    report = (done.directory / "report.md").read_text()
    assert "the reference is fidelity-embedded" in report
    assert "only as good as it is" in report


def test_a_fault_on_every_path_fails_by_the_reference_alone(against: Here) -> None:
    done = against("--fault", "all-wrong")
    assert (done.code, states(done)) == (10, ["fail", "fail"])
    others = {cell["state"] for cell in done.arm("none")["cells"] if cell["name"] not in CELLS}
    assert others == {"pass"}


def test_long_prefills_fail_at_their_lengths_alone(against: Here) -> None:
    done = against("--fault", "long-prefill:tokens=200")
    assert (done.code, states(done)) == (10, ["pass", "fail"])


def test_another_model_is_refused(against: Here) -> None:
    done = against("--fault", "none", "--profile", "quiz-kv")
    assert done.code == 2
    assert "the reference is of quiz-state, the server serves quiz-kv" in " ".join(done.out.split())
    assert done.observations == []


@pytest.mark.parametrize("name", ["http://127.0.0.1:1", "nothing.jsonl"])
def test_a_reference_that_is_not_there_starts_nothing(name: str, here: Here) -> None:
    done = here("run", "--model", "embedded", "--reference", name)
    assert done.code == (3 if "http" in name else 2)
    assert "the reference" in done.err
    assert not done.directory.exists()
