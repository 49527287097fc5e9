"""The main job end to end on the embedded engine: faults fail, guards pass, what was not reached is never a
pass."""

from collections import Counter

import junitparser
import pytest

from .conftest import Fidelity

NONE = ("run", "--model", "embedded", "--guard", "none")


def test_the_fault_fails_every_prompt_at_tail_1(fidelity_once: Fidelity) -> None:
    done = fidelity_once(*NONE)
    assert done.code == 10, done.out + done.err
    suspect = done.cell("L=193 tail=1")
    assert (suspect["state"], suspect["corrupt"], suspect["exercised"]) == ("fail", 30, 30)
    assert suspect["corrupt_sends"] == 60
    assert suspect["faces"]["null"] == suspect["values"] > 0
    assert suspect["cached"] == {"192": 60}
    for clean in ("L=194 tail=2", "L=225 tail=33", "L=193 cold", "L=194 cold", "L=225 cold"):
        cell = done.cell(clean)
        assert (cell["state"], cell["corrupt"], cell["exercised"]) == ("pass", 0, 30), cell["reason"]


def test_the_garbage_can_be_read(fidelity_once: Fidelity) -> None:
    done = fidelity_once(*NONE)
    examples = done.cell("L=193 tail=1")["examples"]
    assert examples
    for example in examples:
        assert example["other"].startswith("!!!!!!!!")
        assert example["cold"].startswith(example["expected"][:1])
    assert "!!!!!!!!" in done.out
    assert "!!!!!!!!" in (done.directory / "report.md").read_text()


def test_every_report_says_it_is_simulated_and_agrees(fidelity_once: Fidelity) -> None:
    done = fidelity_once(*NONE)
    assert "SIMULATED" in done.out
    assert "SIMULATED" in (done.directory / "report.md").read_text()
    assert "SIMULATED" in (done.directory / "junit.xml").read_text()
    assert done.summary["label"].startswith("SIMULATED")
    junit = junitparser.JUnitXml.fromfile(str(done.directory / "junit.xml"))
    assert junit.failures == 2  # the re-sends, and decode
    assert done.summary["state"] == "fail"


def test_known_answers_are_right_when_cold(fidelity_once: Fidelity) -> None:
    arm = fidelity_once(*NONE).arm("none")
    assert arm["cold_known"] == 90
    assert arm["cold_right"] >= 85


def test_the_splitk_guard_passes_with_the_same_hits(fidelity_once: Fidelity) -> None:
    done = fidelity_once("run", "--model", "embedded", "--guard", "splitk")
    assert done.code == 0, done.out + done.err
    suspect = done.cell("L=193 tail=1", "splitk")
    assert (suspect["corrupt"], suspect["exercised"]) == (0, 30)
    assert suspect["cached"] == {"192": 60}
    assert suspect["tails"] == {"1": 60}
    resend = "0 corrupt prompts of 30: at most 10 % at 95 %"
    assert done.summary["bound"] == f"{resend}; decode: none corrupt, at most 50 % at 95 %"
    assert "0 corrupt prompts of 30: at most 10 % at 95 %" in done.out


def test_the_retreat_guard_passes_structurally(fidelity_once: Fidelity) -> None:
    where = ("--position", "64", "--position", "192")
    done = fidelity_once("run", "--model", "embedded", "--guard", "retreat", "--probe", "resend", *where)
    assert done.code == 0, done.out + done.err
    for length in (65, 193):
        cell = done.cell(f"L={length} tail=1", "retreat")
        assert cell["reason"].startswith("one-token path removed")
        assert min(map(int, cell["tails"])) >= 2
    assert done.cell("L=65 tail=1", "retreat")["cached"] == {"0": 60}
    assert done.cell("L=193 tail=1", "retreat")["cached"] == {"0": 30, "128": 30}
    assert done.cell("L=194 tail=2", "retreat")["cached"] == {"192": 60}


def test_the_retreat_guard_leaves_decode_as_it_is(fidelity: Fidelity) -> None:
    """It avoids one path to a one-token forward; single-request decode is another."""
    done = fidelity("run", "--model", "embedded", "--guard", "retreat", "--probe", "decode", "--tokens", "48")
    assert done.code == 10, done.out + done.err
    assert done.cell("T=0", "retreat")["corrupt"] == 8


def test_no_buffer_is_inconclusive_for_want_of_a_hit(fidelity_once: Fidelity) -> None:
    done = fidelity_once("run", "--model", "embedded", "--strategy", "no_buffer", "--probe", "resend")
    assert done.code == 11, done.out + done.err
    suspect = done.cell("L=193 tail=1")
    assert suspect["state"] == "not exercised"
    assert suspect["reason"].startswith("no hit")
    assert "no hit" in done.out


def test_finite_stale_sums_fail_too_and_the_guard_recovers(fidelity_once: Fidelity) -> None:
    done = fidelity_once(
        "run", "--model", "embedded", "--fault", "split-k", "--guard", "none", "--guard", "splitk"
    )
    assert done.code == 10, done.out + done.err
    suspect = done.cell("L=193 tail=1")
    assert (suspect["state"], suspect["exercised"]) == ("fail", 30)
    assert suspect["corrupt"] >= 28
    assert suspect["faces"] == {}
    assert done.cell("L=194 tail=2")["corrupt"] == 0
    assert done.arm("splitk")["state"] == "pass"


@pytest.mark.parametrize(("cu", "largest"), [(32, 2), (64, 4)])
def test_more_compute_units_widen_the_fault_region(fidelity_once: Fidelity, cu: int, largest: int) -> None:
    done = fidelity_once("run", "--model", "embedded", "--cu", str(cu))
    assert done.code == 10, done.out + done.err
    cells = [cell for cell in done.arm("none")["cells"] if cell["probe"] == "resend"]
    kinds = Counter((cell["kind"], cell["state"]) for cell in cells)
    assert kinds[("suspect", "fail")] == largest
    assert kinds[("control", "pass")] == 2
    assert done.cell(f"L={192 + largest} tail={largest}")["corrupt"] == 30
    assert done.cell(f"L={193 + largest} tail={largest + 1}")["state"] == "pass"


def test_the_first_threads_design(fidelity_once: Fidelity) -> None:
    done = fidelity_once("run", "--config", "first-thread")
    assert done.code == 10, done.out + done.err
    assert done.cell("L=193 tail=1")["corrupt_sends"] == 24
    # Stale sums are finite here: at another length one of them can leave the token as it is.
    assert done.cell("L=705 tail=1")["corrupt_sends"] >= 20
    for name in ("L=194 tail=2", "L=195 tail=3", "L=196 tail=4", "L=706 tail=2"):
        assert done.cell(name)["corrupt"] == 0
    shows = [obs["answer"]["text"] for obs in done.observations if obs["role"] == "show-cold"]
    assert any(text.startswith("Paris") for text in shows)


def test_the_first_threads_design_bounds_too_little_when_guarded(fidelity_once: Fidelity) -> None:
    done = fidelity_once("run", "--config", "first-thread", "--guard", "splitk")
    assert done.code == 11, done.out + done.err
    assert "at most 39.4 %" in done.out
    assert "more clean prompts would decide" in done.out


def test_first_thread_passes_at_the_rate_six_prompts_can_bound(fidelity_once: Fidelity) -> None:
    done = fidelity_once("run", "--config", "first-thread", "--guard", "splitk", "--max-rate", "0.4")
    assert done.code == 0, done.out + done.err


def test_a_healthy_engine_passes_with_noise_and_without(fidelity_once: Fidelity) -> None:
    for noise in ("0", "0.1"):
        done = fidelity_once("run", "--model", "embedded", "--fault", "none", "--noise", noise)
        assert done.code == 0, done.out + done.err
    floor = done.cell("L=193 cold")["divergences"]["jsd_lower"]["median"]
    assert floor > 0


def test_fail_fast_stops_at_the_first_proof(fidelity_once: Fidelity) -> None:
    done = fidelity_once(*NONE, "--fail-fast")
    assert done.code == 10, done.out + done.err
    judged = [obs["role"] for obs in done.observations if obs["role"] in ("cold", "cold2", "hit")]
    assert judged == ["cold", "cold2", "hit"]
