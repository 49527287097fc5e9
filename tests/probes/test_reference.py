"""Runs against a server in memory, held against a recorded run or a second server in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fidelity.engines import sglang
from fidelity.plan import RunPlan
from fidelity.prompts.open import open_prompts
from fidelity.reference import load, save
from fidelity.servers.running import RunningServer
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS

OTHER = "http://other"
CELLS = ["L=193 cold against the reference", "L=225 cold against the reference"]
DECODED = "answers against the reference"
LIKE: dict[str, Any] = {
    "probes": ["resend", "decode"],
    "decode": {"prompts": 6, "tokens": 24, "sampling": False},
    "target": {"assume_idle": True},
}


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Makes a fake the second server; returns the plan that asks it."""

    def make(fake: Any) -> dict[str, Any]:
        @contextmanager
        def server(_plan: RunPlan) -> Iterator[Any]:
            with fake.client() as client:
                yield RunningServer(url=OTHER, owned=False, client=client), sglang.facts(client)

        monkeypatch.setattr("fidelity.probes.reference.reference_server", server)
        return {**LIKE, "reference": OTHER}

    return make


def pair(fake_sglang: Any, **given: Any) -> tuple[Any, Any]:
    """A trusted fake and one under test, which read and answer alike. Their words are known beforehand: what
    a fake says past the last one depends on how many it has read."""
    trusted, fake = fake_sglang(), fake_sglang(**given)
    for prompt in open_prompts():
        trusted.encode(prompt.messages)
    trusted.words += [f"spare{number}" for number in range(20)]
    fake.words, fake.continued = trusted.words, trusted.continued
    return trusted, fake


def states(played: Any) -> dict[str, str]:
    return {name: cell.state for name, cell in played.cells().items() if cell.probe == "reference"}


ALL_PASS = dict.fromkeys([*CELLS, DECODED], PASS)


def test_a_recorded_run(play: Any, fake_sglang: Any, tmp_path: Any) -> None:
    trusted, fake = pair(fake_sglang)
    before = play(trusted, LIKE, name="trusted")
    save(load(str(before.directory)), tmp_path / "reference.jsonl")
    sent = len(before.records)
    for number, name in enumerate((str(before.directory), str(tmp_path / "reference.jsonl"))):
        fake.caches.clear()
        played = play(fake, {**LIKE, "seed": 5, "reference": name}, name=f"run{number}")
        assert states(played) == ALL_PASS
        own = [obs for obs in played.records if obs.arm == "none"]
        # Another seed alone would choose other prompts, and nothing is sent because of the reference.
        assert played.manifest.arms["none"].prompts == before.manifest.arms["none"].prompts
        assert len(own) == sent
        assert {obs.arm for obs in played.records} == {"none", "reference"}
        assert any(
            "run run-1" in warning and "as good as it is" in warning for warning in played.verdict.warnings
        )


def test_a_fault_common_to_cold_and_hit(play: Any, fake_sglang: Any) -> None:
    trusted, fake = pair(fake_sglang, fault="moved", affects=lambda *_: True)
    before = play(trusted, LIKE, name="trusted")
    assert play(fake, {**LIKE, "probes": ["resend"]}, name="alone").verdict.state == PASS
    fake.caches.clear()
    played = play(fake, {**LIKE, "probes": ["resend"], "reference": str(before.directory)})
    assert states(played) == dict.fromkeys(CELLS, FAIL)
    assert played.verdict.exit_code == 10
    assert played.cells()["L=193 cold"].state == PASS


def test_prompts_of_which_the_server_is_unsure_are_not_passed_over(play: Any, fake_sglang: Any) -> None:
    trusted, fake = pair(fake_sglang, top=0.6)
    before = play(trusted, LIKE, name="trusted")
    played = play(fake, {**LIKE, "reference": str(before.directory)})
    assert played.manifest.arms["none"].prompts == before.manifest.arms["none"].prompts
    assert not played.verdict.arms[0].unsure
    assert {states(played)[name] for name in CELLS} == {FAIL}


def test_a_reference_of_other_prompts(play: Any, fake_sglang: Any) -> None:
    trusted, fake = pair(fake_sglang)
    before = play(trusted, {**LIKE, "resend": {"positions": [256]}}, name="trusted")
    played = play(fake, {**LIKE, "reference": str(before.directory)})
    assert states(played) == {**dict.fromkeys(CELLS, NOT_EXERCISED), DECODED: PASS}
    assert played.verdict.exit_code == 11
    assert "0 of 6 cold answers have one to the same ids" in played.cells()[CELLS[0]].reason


def test_what_the_reference_generated_is_scored_here(play: Any, fake_sglang: Any) -> None:
    trusted, fake = pair(fake_sglang, fault="hard flip", affects=lambda computed, _: computed == 1)
    before = play(trusted, {**LIKE, "probes": ["decode"]}, name="trusted")
    played = play(fake, {**LIKE, "probes": ["decode"], "reference": str(before.directory)})
    scored = [obs for obs in played.records if obs.arm == "none" and obs.probe == "reference"]
    recorded = [obs for obs in played.records if obs.arm == "reference" and obs.role == "rescore"]
    assert [obs.input_ids for obs in scored] == [obs.input_ids for obs in recorded]
    assert len(scored) == 6
    # Its decode is wrong, its clean prefills are not.
    assert states(played) == {DECODED: PASS}
    assert played.cells()["T=0"].state == FAIL


def test_a_second_server(play: Any, fake_sglang: Any, other: Any) -> None:
    trusted, fake = pair(fake_sglang)
    played = play(fake, other(trusted))
    assert states(played) == ALL_PASS
    asked = [obs for obs in played.records if obs.arm == "reference"]
    assert [obs.role for obs in asked] == ["cold", "cold2"] * 12 + ["rescore", "rescore2"] * 6
    assert len({obs.namespace for obs in asked}) == len(asked)
    assert len(trusted.bodies) == len(asked)
    cold = {tuple(obs.input_ids) for obs in played.records if obs.probe == "resend" and obs.role == "cold"}
    assert {tuple(obs.input_ids) for obs in asked[:24]} == cold
    ready = next(event for event in played.events if hasattr(event, "cells"))
    assert ready.requests == len(played.records)


def test_a_second_server_tells_a_common_fault(play: Any, fake_sglang: Any, other: Any) -> None:
    trusted, fake = pair(fake_sglang, fault="hard flip", affects=lambda *_: True)
    played = play(fake, other(trusted))
    assert {states(played)[name] for name in CELLS} == {FAIL}
    assert "hard flip" in played.cells()[CELLS[0]].reason


def test_a_broken_second_server_judges_nobody(play: Any, fake_sglang: Any, other: Any) -> None:
    trusted, fake = pair(fake_sglang)
    trusted.fault, trusted.affects = "nan", lambda *_: True
    played = play(fake, {**other(trusted), "probes": ["resend"]})
    assert states(played) == dict.fromkeys(CELLS, INCONCLUSIVE)
    assert "it cannot judge" in played.verdict.reason


def test_nothing_is_asked_twice(play: Any, fake_sglang: Any, other: Any) -> None:
    """In a run that was killed while the second server was asked."""
    trusted, fake = pair(fake_sglang)
    plan = other(trusted)
    whole = len(play(fake, plan, name="whole").records)
    trusted.bodies.clear()
    for one in (trusted, fake):
        one.caches.clear()
    cut = play(fake, plan, name="cut", stop_after=whole - 8)
    assert 0 < len(trusted.bodies) < 36
    resumed = play(fake, resume=cut.directory)
    assert states(resumed) == ALL_PASS
    assert len(trusted.bodies) in (36, 37)  # a pair that was cut in two is sent again


def test_nothing_recorded_is_copied_twice(play: Any, fake_sglang: Any) -> None:
    trusted, fake = pair(fake_sglang)
    before = play(trusted, LIKE, name="trusted")
    played = play(fake, {**LIKE, "reference": str(before.directory)})
    resumed = play(fake, resume=played.directory)
    copied = [obs for obs in resumed.records if obs.arm == "reference"]
    assert len(copied) == 36
    assert states(resumed) == ALL_PASS


def test_a_failed_request_of_the_second_server(play: Any, fake_sglang: Any, other: Any) -> None:
    trusted, fake = pair(fake_sglang)
    trusted.hooks[1] = lambda: httpx.Response(503, text="busy")
    played = play(fake, other(trusted))
    assert states(played) == ALL_PASS
    assert any("started again" in warning for warning in played.verdict.warnings)


@pytest.mark.parametrize("live", [True, False])
def test_another_model_is_refused(live: bool, play: Any, fake_sglang: Any, other: Any) -> None:
    trusted, fake = pair(fake_sglang)
    trusted.info = {"vocab_size": 400}
    plan = other(trusted) if live else {**LIKE, "reference": str(play(trusted, LIKE, name="t").directory)}
    played = play(fake, plan)
    assert not fake.bodies
    assert (played.verdict.state, played.verdict.exit_code) == ("could not run", 2)
    assert "a vocabulary of 400 ids, the server one of 512" in played.verdict.reason
    trusted.caches.clear()
    taken = play(fake, {**plan, "reference_any_model": True}, name="any")
    assert states(taken) == ALL_PASS
