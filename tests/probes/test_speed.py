"""What one block of the speed probe sends, in which order, and what it does on servers that differ."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest

from fidelity.engines.facts import ServerFacts
from fidelity.probes.speed import WARM_UPS, WAVES, concurrency, hit_primes, parts

PLAN: dict[str, Any] = {
    "probes": ["speed"],
    "speed": {"prompts": 3, "tokens": 5, "concurrency": [4, 2]},
    "target": {"allow_load": True},
}


def streams(fake: Any) -> Any:
    """The fake, which now streams where that is asked for, a token an event."""

    def sees(request: httpx.Request) -> httpx.Response | None:
        body = json.loads(request.content) if request.content else {}
        if not body.get("stream"):
            return None
        fake.bodies.append(body)
        hook = fake.hooks.get(len(fake.bodies))
        if hook and (answer := hook()):
            return answer
        item = fake._generate({**body, "top_logprobs_num": 0}).json()
        ids, meta = item["output_ids"], item["meta_info"]
        events = []
        for count in range(1, len(ids) + 1):
            told = {**meta, "completion_tokens": count}
            if count < len(ids):
                told["finish_reason"] = None
            events.append({"text": "", "output_ids": ids[:count], "meta_info": told})
        lines = (f"data: {said}\n\n".encode() for said in [*map(json.dumps, events), "[DONE]"])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=lines)

    fake.sees = sees
    return fake


def own(played: Any) -> list[Any]:
    return [obs for obs in played.records if obs.probe == "speed"]


def test_one_block(play: Any, fake_sglang: Any) -> None:
    fake = streams(fake_sglang())
    played = play(fake, PLAN)
    sent = own(played)
    assert Counter(obs.role for obs in sent) == {
        "check": WARM_UPS,
        "rescore": WARM_UPS,
        "warm": 4,
        "cold": 3,
        "hit": 3,
        "single": 3,
        "wave": WAVES * 6,
    }
    # Everything that is discarded comes first.
    timed = [obs.role in ("cold", "hit", "single", "wave") for obs in sent]
    assert timed == sorted(timed)
    assert [obs.batch for obs in sent if obs.cell == "c=2"][:3] == ["c=2/wave0", "c=2/wave0", "c=2/wave1"]
    for obs in sent:
        assert (obs.answer.first_token is None) is (obs.role in ("check", "rescore"))
        if obs.role in ("single", "wave"):
            assert len(obs.answer.output_ids) == 5
            assert obs.answer.cached_tokens == 0
    hits = [obs for obs in sent if obs.role == "hit"]
    assert all(obs.reached and obs.answer.cached_tokens == 192 for obs in hits)
    # No two but a prompt's cold send and its hit share a namespace.
    shared = Counter(obs.namespace for obs in sent)
    assert {name for name, count in shared.items() if count > 1} == {obs.namespace for obs in hits}
    # Streams are timed without logprobs, and decode to the same number of tokens.
    bodies = [body for body in fake.bodies if body.get("stream")]
    assert len(bodies) == 4 + 3 + 3 + 3 + WAVES * 6
    assert not any("return_logprob" in body for body in bodies)
    assert all(
        body["sampling_params"].get("ignore_eos")
        for body in bodies
        if body["sampling_params"]["max_new_tokens"] > 1
    )


def test_the_order_is_the_seeds_and_the_same_on_every_block(play: Any, fake_sglang: Any) -> None:
    def order(name: str, **over: Any) -> list[str]:
        sent = own(play(streams(fake_sglang()), {**PLAN, **over}, name=name))
        return [obs.prompt for obs in sent if obs.role == "single"]

    assert order("a") == order("b")
    assert len({tuple(order(f"seed{seed}", seed=seed)) for seed in range(4)}) > 1


def test_forecast_is_what_is_sent(play: Any, fake_sglang: Any) -> None:
    played = play(streams(fake_sglang()), PLAN)
    record = played.manifest.arms["none"]
    facts = ServerFacts(engine="sglang", version="0.5.21", model="fake")
    forecast = list(parts(played.manifest.plan, facts, record.cells, 1))
    assert sum(part.requests for part in forecast) == len(own(played))
    assert sum(part.new_tokens for part in forecast) == sum(
        len(obs.answer.output_ids) for obs in own(played) if obs.role != "rescore"
    )


def test_a_server_in_use_gets_one_request_at_a_time(play: Any, fake_sglang: Any) -> None:
    played = play(streams(fake_sglang()), {**PLAN, "target": {"allow_load": False}})
    assert not any(obs.role == "wave" for obs in own(played))
    assert Counter(obs.role for obs in own(played))["warm"] == 1
    assert any("--allow-load" in warning for warning in played.manifest.arms["none"].warnings)
    assert played.cells()["speed"].state == "pass"
    # A rate limit would hold requests apart that must be in flight at once.
    assert concurrency(played.manifest.plan.model_copy(update={}), batches=True) == (2, 4)
    target = played.manifest.plan.target.model_copy(update={"rate": 5.0})
    assert concurrency(played.manifest.plan.model_copy(update={"target": target}), batches=True) == ()


def test_a_broken_stream_is_recorded_and_sent_again(play: Any, fake_sglang: Any) -> None:
    fake = streams(fake_sglang())

    def breaks() -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"data: {half\n\n")

    play(fake, PLAN)
    first = next(number for number, body in enumerate(fake.bodies, 1) if "/single/" in str(body["extra_key"]))
    again = streams(fake_sglang(hooks={first: breaks}))
    played = play(again, PLAN, name="broken")
    singles = [obs for obs in own(played) if obs.role == "single"]
    assert [obs.attempt for obs in singles] == [0, 1, 0, 0]
    assert singles[0].answer.failed
    assert len({obs.namespace for obs in singles}) == 4
    cell = played.cells()["speed"]
    assert (cell.state, cell.exercised, cell.missed) == ("pass", 3, {})


def test_a_resumed_block_warms_up_again_and_sends_the_rest(play: Any, fake_sglang: Any) -> None:
    whole = own(play(streams(fake_sglang()), PLAN))
    timed = [obs.group for obs in whole if obs.role in ("cold", "single", "wave")]
    stopped = play(streams(fake_sglang()), PLAN, stop_after=30, name="stopped")
    assert 0 < len(own(stopped)) < len(whole)
    resumed = play(streams(fake_sglang()), resume=stopped.directory)
    assert [obs.group for obs in own(resumed) if obs.role in ("cold", "single", "wave")] == timed
    assert sum(obs.role == "warm" for obs in own(resumed)) == 8


@pytest.mark.parametrize(
    ("strategy", "min_tail", "length", "primes"),
    [
        ("extra_buffer", 1, 193, 0),
        ("attention only", 1, 193, 0),
        # A guard that leaves no tail of one goes back one checkpoint, which the first re-send makes.
        ("extra_buffer", 2, 193, 1),
        ("extra_buffer", 2, 65, None),
        # The state at the exact end of a prompt never serves the same prompt.
        ("no_buffer", 1, 193, None),
    ],
)
def test_sends_before_a_hit(strategy: str, min_tail: int, length: int, primes: int | None) -> None:
    facts = ServerFacts(engine="sglang", version="0.5.21", model="fake", strategy=strategy)
    assert hit_primes(length, facts, min_tail) == primes


def test_without_hits_the_rest_is_timed(play: Any, fake_sglang: Any) -> None:
    played = play(streams(fake_sglang(strategy="no_buffer")), PLAN)
    assert not any(obs.role == "hit" for obs in own(played))
    assert any("no hit was timed" in warning for warning in played.manifest.arms["none"].warnings)
    assert played.cells()["speed"].state == "pass"


def test_a_corrupt_server_is_no_baseline(play: Any, fake_sglang: Any) -> None:
    played = play(streams(fake_sglang(fault="nan")), PLAN)
    (note,) = [note for note in played.cells()["speed"].notes if "no valid baseline" in note]
    assert note.startswith(f"{WARM_UPS} of {WARM_UPS} warm-up answers are corrupt (NaN")
    healthy = play(streams(fake_sglang()), PLAN, name="healthy")
    assert not any("baseline" in note for note in healthy.cells()["speed"].notes)
