"""What a user can get wrong: one message that says what to do, the right exit code, nothing lost, no
traceback."""

from pathlib import Path

import pytest

from .conftest import Done, Fidelity


def complains(done: Done, code: int, *words: str) -> None:
    said = " ".join((done.err + done.out).split())
    assert done.code == code, said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


def test_an_unknown_option_in_a_plan_file_names_the_nearest(fidelity: Fidelity, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("resend:\n  hit: 3\n")
    complains(fidelity("run", "--config", str(plan)), 2, "resend.hit", "did you mean 'hits'?")


def test_an_unknown_plan_names_the_nearest(fidelity: Fidelity) -> None:
    complains(fidelity("run", "--config", "first-tread"), 2, "did you mean 'first-thread'?")


def test_an_unknown_guard_names_the_nearest(fidelity: Fidelity) -> None:
    complains(fidelity("run", "--model", "embedded", "--guard", "split"), 2, "did you mean 'splitk'?")


def test_an_unknown_fault_is_refused(fidelity: Fidelity) -> None:
    complains(fidelity("run", "--model", "embedded", "--fault", "split"), 2, "target.fault", "'split-k'")


def test_nothing_to_run(fidelity: Fidelity) -> None:
    complains(fidelity("run"), 2, "--model embedded")


def test_a_model_without_sglang_says_the_ways_on(fidelity: Fidelity) -> None:
    complains(
        fidelity("run", "--model", "Qwen3.6-35B-A3B-FP8"),
        3,
        "sglang is not installed",
        "--url",
        "--model embedded",
    )


def test_a_broken_prompt_entry_is_named_by_file_and_entry(fidelity: Fidelity, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "family: mine\nkind: fact\nabout: ours\nframes:\n  - user: 'Items {filler}. {question}'\n"
        "items:\n  - {id: one, question: 'What is one plus one?', answer: two}\n  - "
        "{id: two, question: 'What?'}\n"
    )
    done = fidelity("run", "--model", "embedded", "--prompt-folder", str(folder), "--prompts", "1")
    complains(done, 2, "mine.yaml", "two", "answer")


def test_a_length_below_the_minimum_says_which_and_why(fidelity: Fidelity) -> None:
    complains(fidelity("prompts", "--length", "20", "--prompts", "1"), 2, "20", "shortest frame takes")


def test_a_length_that_is_never_cached_is_refused(fidelity: Fidelity) -> None:
    complains(fidelity("run", "--model", "embedded", "--length", "60"), 2, "60 tokens", "65")


def test_a_position_off_the_grid_is_refused(fidelity: Fidelity) -> None:
    complains(fidelity("run", "--model", "embedded", "--position", "100"), 2, "100", "64")


def test_no_server_at_the_address(fidelity: Fidelity) -> None:
    complains(fidelity("check", "http://127.0.0.1:9"), 3, "no answer from http://127.0.0.1:9")


def test_an_address_that_is_none(fidelity: Fidelity) -> None:
    complains(fidelity("check", "localhost:30000"), 2, "not a URL")


def test_a_results_folder_that_cannot_be_made(fidelity: Fidelity, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("kept")
    done = fidelity("run", "--model", "embedded", output=blocker / "run")
    complains(done, 2, "cannot make", "--output")
    assert blocker.read_text() == "kept"


def test_a_folder_that_holds_a_run_is_not_overwritten(fidelity: Fidelity, tmp_path: Path) -> None:
    first = fidelity("run", "--model", "embedded", "--fail-fast", "--prompts", "1")
    before = (first.directory / "observations.jsonl").read_bytes()
    complains(fidelity("run", "--model", "embedded"), 2, "already holds a run", "--resume")
    assert (first.directory / "observations.jsonl").read_bytes() == before


@pytest.mark.parametrize("command", [("report", "nowhere"), ("run", "--resume", "nowhere")])
def test_a_folder_without_a_run(fidelity: Fidelity, command: tuple[str, ...]) -> None:
    complains(fidelity(*command), 2, "nowhere is not a run")
