"""`fidelity plan`, and judging again by other thresholds, as a user runs them."""

import json
from pathlib import Path

import pytest

from .conftest import Fidelity


def test_a_plan_needs_no_server_and_sends_nothing(fidelity: Fidelity) -> None:
    done = fidelity("plan", "--url", "http://127.0.0.1:9")
    assert done.code == 0, done.err
    assert "suspects: L=193 tail=1, L=194 tail=2, L=195 tail=3, L=196 tail=4" in done.out
    assert "controls: L=225 tail=33" in done.out
    assert "0 corrupt of 30 bound the corruption rate at 9.6 %" in done.out


@pytest.mark.parametrize("rate", ["1%", "0.01", "1 %"])
def test_a_rate_sizes_the_plan(fidelity: Fidelity, rate: str) -> None:
    done = fidelity("plan", "--max-rate", rate)
    assert done.code == 0, done.err
    assert "0 corrupt of 299 bound the corruption rate at 1 % at 95 %; allowed are 1 %" in done.out


def test_a_number_of_prompts_is_kept(fidelity: Fidelity) -> None:
    done = fidelity("plan", "--max-rate", "1%", "--prompts", "60")
    assert "this plan cannot pass: that takes 299 prompts, none of them corrupt" in done.out


def test_minutes_size_the_plan(fidelity: Fidelity) -> None:
    done = fidelity("plan", "--minutes", "5", "--latency", "0.2", "--json")
    assert done.code == 0, done.err
    outlook = json.loads(done.out)
    assert outlook["prompts"] == 112
    assert outlook["minutes"] <= 5
    assert [cell["kind"] for cell in outlook["cells"]] == ["suspect", "control", "control"]
    assert set(outlook) >= {"requests", "bound", "caught", "fails_broken", "fails_wrong", "looks"}


def test_a_plan_file(fidelity: Fidelity) -> None:
    done = fidelity("plan", "--config", "gate")
    assert done.code == 0, done.err
    assert "plan 'gate'" in done.out
    assert "299 prompts in each cell, 1 hits each" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-rate", "much"), "'much' is no share"),
        (("--max-rate", "150%"), "thresholds.max_rate"),
        (("--max-rate", "0.1%"), "2995 distinct prompts are wanted"),
        (("--minutes", "0.01"), "do not allow one prompt"),
        (("--latency", "0"), "--latency"),
    ],
)
def test_what_cannot_be_planned(fidelity: Fidelity, words: tuple[str, ...], said: str) -> None:
    done = fidelity("plan", *words)
    assert done.code == 2
    assert said in " ".join((done.err + done.out).replace("│", " ").split())


def test_other_thresholds_afterwards_are_told(fidelity: Fidelity) -> None:
    done = fidelity("run", "--model", "embedded", "--guard", "splitk", "--prompts", "6", "--max-rate", "50%")
    assert done.code == 0, done.out + done.err
    again = fidelity("report", str(done.directory))
    assert again.code == 0
    assert "re-judged" not in again.out
    other = fidelity("report", str(done.directory), "--max-rate", "10%", "--kappa", "3")
    assert other.code == 11
    said = "re-judged with thresholds other than the run's own, chosen after it: max_rate 0.1 instead of 0.5"
    assert f"{said}, kappa 3 instead of 2" in " ".join(other.out.split())
    assert done.summary["warnings"][0].startswith(said)
    assert "chosen after the run" in (done.directory / "report.md").read_text()
    refused = fidelity("run", "--resume", str(done.directory), "--prompts", "9")
    assert refused.code == 2
    assert "looks that the plan of this run allows: 1; taken: 1" in refused.err


def test_a_run_planned_for_two_looks_grows_once(fidelity: Fidelity, tmp_path: Path) -> None:
    plan = tmp_path / "two.yaml"
    plan.write_text("prompts: {count: 4}\nthresholds: {looks: 2, max_rate: 0.7}\n")
    first = fidelity("run", "--model", "embedded", "--guard", "splitk", "--config", str(plan))
    assert first.code == 0, first.out + first.err
    sent = len(first.observations)
    grown = fidelity("run", "--resume", str(first.directory), "--prompts", "6")
    assert grown.code == 0, grown.out + grown.err
    suspect = first.cell("L=193 tail=1", "splitk")
    assert (suspect["prompts"], suspect["exercised"]) == (6, 6)
    # The first four prompts are not sent again: 2 more, screened and measured, after a warm-up.
    assert len(first.observations) == sent + 24 + 2 * (1 + 3 * 4)
    assert fidelity("run", "--resume", str(first.directory), "--prompts", "8").code == 2
