"""What the warm-up and the screening tell, although no cell judges them."""

from typing import Any

from fidelity.verdicts import FAIL, PASS

IDLE: dict[str, Any] = {"target": {"assume_idle": True}}


def nan_at(*computed: int) -> Any:
    return lambda size, _: size in computed


def test_nan_in_the_screening_fails(fake_sglang: Any, play: Any) -> None:
    """The screening sends the longest prompt cold: 225 tokens at once."""
    fake = fake_sglang(fault="nan", affects=nan_at(225))
    played = play(fake, {**IDLE, "resend": {"controls": [33], "lengths": None}})
    assert played.verdict.state == FAIL
    assert played.verdict.exit_code == 10


def test_nan_that_only_the_warm_up_met_is_a_warning(fake_sglang: Any, play: Any) -> None:
    short = 157  # a warm-up sends parts of its prompts
    played = play(fake_sglang(fault="nan", affects=nan_at(short)), {**IDLE, "resend": {"warmup_sends": 4}})
    assert played.verdict.state == PASS
    (said,) = (line for line in played.verdict.warnings if "warm-up answers are broken" in line)
    assert "1 of 5" in said
    assert "the decode and batch probes have to look at this server" in said


def test_a_plan_without_a_suspect_is_never_a_pass(fake_sglang: Any, play: Any) -> None:
    played = play(fake_sglang(), {**IDLE, "resend": {"suspects": [], "controls": [2, 33]}})
    assert played.verdict.exit_code == 11
    assert "no suspect tail" in played.verdict.reason


def test_a_send_that_the_server_failed_once_is_no_pass(fake_sglang: Any, play: Any) -> None:
    import httpx

    healthy = play(fake_sglang(), IDLE, name="healthy")
    hits = [number for number, one in enumerate(healthy.records, start=1) if one.role == "hit"]
    broken = {hits[0]: lambda: httpx.Response(500, json={"error": {"message": "internal error"}})}
    played = play(fake_sglang(hooks=broken), IDLE)
    assert played.verdict.exit_code == 11
    assert "1 of 6 prompts had a send that the server failed" in played.verdict.reason
