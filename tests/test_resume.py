"""A run that was killed, lost its server or was interrupted goes on where it stopped."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity import events
from fidelity.observations import Observation
from fidelity.runner import OBSERVATIONS
from fidelity.verdicts import ArmVerdict, RunVerdict

TWO_PROMPTS = {"prompts": {"count": 2}}


def outcome(verdict: RunVerdict) -> list[Any]:
    """All that was concluded, without what tells how the run went."""

    def of(arm: ArmVerdict) -> ArmVerdict:
        cells = tuple(dataclasses.replace(cell, examples=()) for cell in arm.cells)
        return dataclasses.replace(arm, cells=cells, requests=0, failed_requests=0, seconds=0.0, warnings=())

    return [
        verdict.state,
        verdict.exit_code,
        verdict.bound,
        verdict.reason,
        [of(arm) for arm in verdict.arms],
    ]


def no_send_twice(records: list[Observation]) -> None:
    sends = [(one.namespace, one.send) for one in records if one.role != "warmup"]
    assert len(set(sends)) == len(sends)
    assert [one.order for one in records] == list(range(len(records)))


def measured(records: list[Observation]) -> list[Observation]:
    return [one for one in records if one.probe == "resend"]


@pytest.mark.parametrize("kill_after", [1, 2, 6, 7, 8, 9, 12, 17, 22, 30])
def test_a_killed_run_goes_on(kill_after: int, play: Any, fake_sglang: Any) -> None:
    whole = play(fake_sglang(), TWO_PROMPTS, name="whole")
    fake = fake_sglang()
    killed = play(fake, TWO_PROMPTS, stop_after=kill_after)
    assert killed.verdict.exit_code in (11, 0)
    before = (killed.directory / OBSERVATIONS).read_text()
    resumed = play(fake, resume=killed.directory)
    after = (killed.directory / OBSERVATIONS).read_text()
    assert after.startswith(before)  # nothing that was recorded is lost or changed
    no_send_twice(resumed.records)
    assert outcome(resumed.verdict) == outcome(whole.verdict)
    assert resumed.manifest.status == "complete"


def test_complete_groups_and_screenings_are_not_sent_again(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    # 1 screening and 8 sends of the first prompt, then 1 screening and 5 of the second.
    killed = play(fake, TWO_PROMPTS, stop_after=4 + 3 + 9 + 6)
    assert len(measured(killed.records)) == 15
    resumed = play(fake, resume=killed.directory)
    again = measured(resumed.records)[15:]
    assert [one.role for one in again] == ["cold", "cold2", "hit", "hit"]
    assert [one.attempt for one in again] == [1, 1, 1, 1]
    skipped = [event.requests for event in resumed.events if isinstance(event, events.Skipped)]
    assert skipped == [4, 4, 4]


def test_the_warm_up_is_sent_again_and_in_fresh_namespaces(play: Any, fake_sglang: Any) -> None:
    """The server may be a new process: it needs one. On the old one it must not be served from the cache."""
    fake = fake_sglang()
    killed = play(fake, TWO_PROMPTS, stop_after=10)
    resumed = play(fake, resume=killed.directory)
    warm = [one for one in resumed.records if one.role == "warmup"]
    assert len(warm) == 6
    assert len({one.namespace for one in warm}) == 6
    assert {one.answer.cached_tokens for one in warm} == {0}


def test_a_run_that_ended_has_nothing_left_to_send(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    ended = play(fake, TWO_PROMPTS)
    again = play(fake, resume=ended.directory)
    assert measured(again.records) == measured(ended.records)
    assert outcome(again.verdict) == outcome(ended.verdict)


@pytest.mark.parametrize("lost", range(6, 12))
def test_a_request_that_was_sent_and_not_recorded(lost: int, play: Any, fake_sglang: Any) -> None:
    """The kill came between: the server has the prompt in its cache, the record a torn line or none."""
    fake = fake_sglang()
    killed = play(fake, TWO_PROMPTS, stop_after=lost)
    path = killed.directory / OBSERVATIONS
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] if lost % 2 else whole[: whole[:-1].rfind(b"\n") + 1])
    resumed = play(fake, resume=killed.directory)
    assert resumed.records[: len(killed.records) - 1] == killed.records[:-1]
    assert outcome(resumed.verdict) == outcome(play(fake_sglang(), TWO_PROMPTS, name="whole").verdict)


def test_a_lost_server_is_no_verdict_until_it_is_back(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()

    def die() -> httpx.Response:
        fake.dead = True
        raise httpx.ReadError("connection reset")

    fake.hooks[11] = die
    lost = play(fake, TWO_PROMPTS)
    assert lost.verdict.exit_code == 3
    still = play(fake, resume=lost.directory)
    assert still.verdict.exit_code == 3
    assert len(still.records) == len(lost.records) == 11
    fake.dead = False
    resumed = play(fake, resume=lost.directory)
    no_send_twice(resumed.records)
    assert resumed.records[10].answer.status == 0  # the failed one is kept
    assert outcome(resumed.verdict) == outcome(play(fake_sglang(), TWO_PROMPTS, name="whole").verdict)
    assert resumed.manifest.exit_code is None


def test_a_refused_screening_stays_refused(play: Any, fake_sglang: Any) -> None:
    def busy() -> httpx.Response:
        return httpx.Response(429)

    fake = fake_sglang(hooks={4: busy})
    whole = play(fake_sglang(hooks={4: busy}), TWO_PROMPTS, name="whole")
    killed = play(fake, TWO_PROMPTS, stop_after=20)
    resumed = play(fake, resume=killed.directory)
    assert [one.role for one in resumed.records].count("screen") == 3
    assert outcome(resumed.verdict) == outcome(whole.verdict)
    assert resumed.manifest.arms["none"].replaced == whole.manifest.arms["none"].replaced


def test_corruption_stays_corruption(play: Any, fake_sglang: Any) -> None:
    whole = play(fake_sglang(fault="nan"), TWO_PROMPTS, name="whole")
    for kill_after in (10, 13):
        fake = fake_sglang(fault="nan")
        killed = play(fake, TWO_PROMPTS, stop_after=kill_after, name=f"run{kill_after}")
        resumed = play(fake, resume=killed.directory)
        for played in (whole, resumed):
            assert played.verdict.exit_code == 10
            assert played.cells()["L=193 tail=1"].corrupt == 2
            assert played.cells()["L=193 tail=1"].prompts == 2


def test_an_interrupted_second_arm(play: Any, fake_sglang: Any) -> None:
    says = {"engine": "fidelity-embedded", "fault": "split-k-nan"}
    arms = [{"name": "none"}, {"name": "splitk", "guard": "splitk"}]
    plan = {**TWO_PROMPTS, "target": {"kind": "embedded", "url": None}, "arms": arms}

    def fakes() -> dict[str, Any]:
        words = ["!"]
        guarded = fake_sglang(info={**says, "guard": ["splitk"]}, words=words)
        return {"none": fake_sglang(info=says, words=words), "splitk": guarded}

    def interrupt() -> httpx.Response:
        raise KeyboardInterrupt

    whole = play(fakes(), plan, name="whole")
    servers = fakes()
    servers["splitk"].hooks[8] = interrupt
    stopped = play(servers, plan)
    assert stopped.verdict.exit_code == 130
    resumed = play(servers, resume=stopped.directory)
    first = [one for one in measured(resumed.records) if one.arm == "none"]
    assert len(first) == 18  # the first arm is complete: only its warm-up is sent again
    no_send_twice(resumed.records)
    assert outcome(resumed.verdict) == outcome(whole.verdict)


def test_the_folder_is_a_run_at_every_moment(play: Any, fake_sglang: Any) -> None:
    """Also before the first request, and while it is running."""
    for kill_after in (1, 4):
        killed = play(fake_sglang(), TWO_PROMPTS, stop_after=kill_after, name=f"run{kill_after}")
        data = json.loads((Path(killed.directory) / "manifest.json").read_text())
        assert data["status"] == "running"
        assert killed.verdict.partial
        assert killed.verdict.state != "pass"
