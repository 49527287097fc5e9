"""Single-request decode and speculative decoding, end to end on the embedded engine."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import Done, Fidelity

BOTH = ("run", "--model", "embedded", "--guard", "none", "--guard", "splitk")


@pytest.fixture(scope="module")
def decoded(fidelity_once: Any) -> Done:
    return fidelity_once(*BOTH, "--probe", "decode", "--tokens", "192", "--max-minutes", "4")


def test_decode_of_one_request_is_nan_and_the_guard_recovers(decoded: Done) -> None:
    assert decoded.code == 10, decoded.out
    before, after = decoded.cell("T=0"), decoded.cell("T=0", "splitk")
    assert (before["state"], before["corrupt"], before["exercised"]) == ("fail", 8, 8)
    readings = {one["name"]: one["value"] for one in before["readings"]}
    # The prefill's token is right; every token that is decoded after it is not.
    assert (readings["tokens"], readings["NaN tokens"]) == (192, 8 * 23)
    assert readings["first bad token, earliest"] == 1
    assert (after["state"], after["corrupt"], after["exercised"]) == ("pass", 0, 8)
    assert after["faces"] == {}


def test_nothing_is_sampled_before_a_clean_leg(decoded: Done) -> None:
    assert decoded.cell("T=1")["state"] == "not exercised"
    assert decoded.cell("T=1", "splitk")["state"] == "pass"
    sent = [obs for obs in decoded.observations if obs["role"] != "warmup"]
    temperatures = {(obs["arm"], obs["temperature"]) for obs in sent}
    assert temperatures == {("none", 0.0), ("splitk", 0.0), ("splitk", 1.0)}


def test_the_second_threads_prompt_is_one_of_them(decoded: Done) -> None:
    prompts = [obs["prompt"] for obs in decoded.observations if obs["role"] == "decode"]
    assert prompts[0] == "hash-table"


def test_a_fault_of_extends_leaves_decode_alone(fidelity: Fidelity) -> None:
    words = ("--probe", "decode", "--tokens", "96", "--fault", "split-k-extend")
    done = fidelity("run", "--model", "embedded", *words)
    assert (done.code, done.cell("T=0")["state"]) == (0, "pass"), done.out


def test_a_broken_draft_costs_acceptance_and_changes_no_logprob(fidelity: Fidelity, tmp_path: Path) -> None:
    plan = tmp_path / "draft.yaml"
    plan.write_text("probes: [draft]\ndraft: {prompts: 6, tokens: 32}\ntarget: {speculative: true}\n")
    done = fidelity(*BOTH, "--config", str(plan))
    assert done.code == 10, done.out
    states = [
        [done.cell(name, arm)["state"] for name in ("output", "acceptance")] for arm in ("none", "splitk")
    ]
    assert states == [["pass", "fail"], ["pass", "pass"]]
    (compared,) = done.summary["comparisons"]
    accepted = compared["rows"][0]
    assert accepted["name"] == "accept length"
    assert accepted["low"] > 1.1
    assert "SIMULATED" in done.out


def test_without_speculation_the_draft_is_not_applicable_and_the_rest_runs(fidelity: Fidelity) -> None:
    words = ("--probe", "decode", "--probe", "draft", "--tokens", "48", "--fault", "none")
    done = fidelity("run", "--model", "embedded", *words)
    assert done.code == 0, done.out
    assert done.cell("draft")["state"] == "not applicable"
    assert "the server does no speculative decoding" in done.out
    assert done.cell("T=0")["state"] == "pass"
