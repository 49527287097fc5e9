"""Runs that do not go smoothly: refused requests, lost servers, interrupts, time, impossible plans."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fidelity import events
from fidelity.verdicts import COULD_NOT_RUN

SUSPECT = "L=193 tail=1"


def busy() -> httpx.Response:
    return httpx.Response(429, json={"error": {"message": "too many requests"}})


@pytest.mark.parametrize("number", [4, 5, 6, 8, 9, 12])
def test_a_429_starts_the_group_again_in_a_new_namespace(number: int, play: Any, fake_sglang: Any) -> None:
    """Wherever it comes: 3 warm-up sends, then a screening and two groups of four for each prompt."""
    played = play(fake_sglang(hooks={number: busy}))
    failed = [one for one in played.records if one.answer.status == 429]
    assert len(failed) == 1
    assert played.verdict.exit_code == 0
    assert played.verdict.arms[0].failed_requests == 1
    sends = [(one.namespace, one.send) for one in played.records]
    assert len(set(sends)) == len(sends)
    if failed[0].role != "screen":
        attempts = [
            one.attempt for one in played.records if one.group == failed[0].group and one.role != "screen"
        ]
        assert attempts[-1] == 1
        assert attempts.count(1) == 4
        assert any("started again" in warning for warning in played.verdict.arms[0].warnings)


def test_a_server_that_always_refuses_is_no_pass(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    fake.hooks = {n: busy for n in range(10, 5000) if n % 4}
    played = play(fake, {"resend": {"attempts": 2}})
    assert played.verdict.exit_code == 11
    assert played.manifest.status == "complete"


def test_corruption_before_a_429_is_not_forgotten(play: Any, fake_sglang: Any) -> None:
    """One NaN, then a refused request: the group starts again, clean this time."""
    fake, odd = fake_sglang(), fake_sglang(fault="nan", affects=lambda *_: True)
    odd.words = fake.words
    fake.hooks = {7: lambda: odd._generate(fake.bodies[-1]), 8: busy}
    played = play(fake)
    assert played.records[6].role == "hit"
    assert played.verdict.exit_code == 10


def test_a_server_that_dies_leaves_what_was_recorded(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()

    def die() -> httpx.Response:
        fake.dead = True
        raise httpx.ReadError("connection reset")

    fake.hooks[20] = die
    played = play(fake)
    assert (played.verdict.state, played.verdict.exit_code) == (COULD_NOT_RUN, 3)
    assert len(played.records) == 20
    assert played.records[-1].answer.status == 0
    assert played.events[-1] == events.RunEnded(
        "failed",
        played.manifest.error,
        "what was recorded is kept; `fidelity run --resume FOLDER` goes on from there",
    )
    assert "stopped answering (ReadError: connection reset)" in (played.manifest.error or "")


def test_no_server_is_exit_3(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(dead=True))
    assert (played.verdict.exit_code, played.records) == (3, [])


def test_ids_past_the_vocabulary_are_refused_before_any_send(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(token_offset=400)
    played = play(fake)
    assert fake.bodies == []
    assert played.records == []
    assert played.verdict.exit_code == 2
    assert "outside the vocabulary of 512" in played.verdict.reason


def test_a_length_out_of_reach_is_exit_2(play: Any, fake_sglang: Any) -> None:
    for n, resend in enumerate(({"lengths": [64]}, {"positions": [100]})):
        played = play(fake_sglang(), {"resend": resend}, name=f"run{n}")
        assert played.verdict.exit_code == 2
        assert played.records == []


def test_a_keyboard_interrupt_is_130(play: Any, fake_sglang: Any) -> None:
    def interrupt() -> httpx.Response:
        raise KeyboardInterrupt

    played = play(fake_sglang(hooks={9: interrupt}))
    assert (played.verdict.exit_code, played.manifest.status) == (130, "interrupted")
    assert len(played.records) == 8
    assert played.verdict.partial


def test_out_of_time_is_inconclusive(play: Any, fake_sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    time = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 1.8e9)
    for module in ("fidelity.runner", "fidelity.probes.session"):
        monkeypatch.setattr(f"{module}.time", time)
    fake = fake_sglang()

    def late() -> None:
        clock.now = 61.0

    fake.hooks[50] = late
    played = play(fake, {"max_minutes": 1})
    assert (played.verdict.exit_code, played.manifest.status) == (11, "out of time")
    assert len(played.records) == 50
    assert played.manifest.error == "the 1 minutes of the plan are over"


def test_fail_fast_stops_at_the_first_proof(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(fault="nan"), {"fail_fast": True})
    assert (played.verdict.exit_code, played.manifest.status) == (10, "stopped at the first proof")
    measured = [one.role for one in played.records if one.probe == "resend"]
    assert measured == ["screen", "cold", "cold2", "hit"]
