"""The same cold sends on two starts of each arm, told apart from what a guard does."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from fidelity.engines.facts import ServerFacts
from fidelity.probes.equivalence import SCORED, parts, unfit

PLAN: dict[str, Any] = {
    "probes": ["equivalence"],
    "equivalence": {"prompts": 4, "lengths": [193, 200]},
    "target": {"kind": "embedded", "url": None, "fault": "split-k-nan"},
    "arms": [{"name": "none"}, {"name": "splitk", "guard": "splitk"}],
}
SAYS = {
    "engine": "fidelity-embedded",
    "fault": "split-k-nan",
    "cu": 16,
    "moe_shape": {"hidden": 128, "intermediate": 64, "topk": 2, "experts": 8, "tile": 16},
}


def fakes(fake_sglang: Any, **moved: Callable[[int], float]) -> dict[str, Any]:
    """Two servers that also score prompts beside a new token, the n-th send of an arm `moved` by so much."""
    words = ["!"]
    found = {}
    for name in ("none", "splitk"):
        guard = [] if name == "none" else [name]
        fake = fake_sglang(info={**SAYS, "guard": guard}, words=words)
        fake.sees = _scoring(fake, moved.get(name, lambda send: 0.0))
        found[name] = fake
    return found


def _scoring(fake: Any, moved: Callable[[int], float]) -> Callable[[httpx.Request], httpx.Response | None]:
    sent = 0

    def sees(request: httpx.Request) -> httpx.Response | None:
        nonlocal sent
        body = json.loads(request.content) if request.content else {}
        start = body.get("logprob_start_len", -1)
        if start <= 0:
            return None
        fake.bodies.append(body)
        item = fake._generate(body).json()
        sent += 1
        ids = body["input_ids"][start:]
        quoted = [[None if n == 0 else -2.0 - moved(sent), token, None] for n, token in enumerate(ids)]
        item["meta_info"]["input_token_logprobs"] = quoted
        return httpx.Response(200, json=item)

    return sees


def test_each_arm_is_started_twice_and_sent_the_same(play: Any, fake_sglang: Any) -> None:
    played = play(fakes(fake_sglang), PLAN, owned=True)
    own = [obs for obs in played.records if obs.probe == "equivalence"]
    starts = [(obs.arm, obs.visit) for obs in own]
    assert list(dict.fromkeys(starts)) == [("none", 1), ("splitk", 1), ("splitk", 2), ("none", 2)]
    groups = {start: [obs.group for obs in own if (obs.arm, obs.visit) == start] for start in starts}
    assert len({frozenset(found) for found in groups.values()}) == 1
    assert len({tuple(found) for found in groups.values()}) > 1
    assert all(len(found) == 8 for found in groups.values())
    assert {len(obs.answer.scored) for obs in own} == {SCORED}
    assert {len(obs.answer.output_ids) for obs in own} == {1}
    assert {obs.answer.cached_tokens for obs in own} == {0}
    assert len({obs.namespace for obs in own}) == len(own)
    forecast = list(parts(played.manifest.plan, ServerFacts("sglang", "0.5.21", "fake"), [], 1))
    assert [part.requests for part in forecast] == [8]


def test_equal_servers_pass(play: Any, fake_sglang: Any) -> None:
    played = play(fakes(fake_sglang), PLAN, owned=True)
    assert played.verdict.exit_code == 0, played.verdict.reason
    assert [cell.state for arm in played.verdict.arms for cell in arm.cells] == ["pass", "pass"]
    (one,) = played.verdict.comparisons
    assert (one.probe, one.name, one.state) == ("equivalence", "splitk against none", "pass")


def test_a_guard_that_changes_cold_sends_fails_the_run(play: Any, fake_sglang: Any) -> None:
    played = play(fakes(fake_sglang, splitk=lambda send: 0.3), PLAN, owned=True)
    assert [cell.state for arm in played.verdict.arms for cell in arm.cells] == ["pass", "pass"]
    assert played.verdict.comparisons[0].state == "fail"
    assert played.verdict.exit_code == 10
    assert played.verdict.reason.startswith("equivalence, splitk against none: ")


def test_noise_of_the_server_is_no_difference(play: Any, fake_sglang: Any) -> None:
    # Every send is off by another 0 to 0.6 nat, on either arm: a restart changes as much as the guard.
    def off(send: int) -> float:
        return 0.6 * (send * 0.618 % 1)

    over = {**PLAN, "equivalence": {"prompts": 8, "lengths": [193, 200]}}
    played = play(fakes(fake_sglang, none=off, splitk=off), over, owned=True)
    (one,) = played.verdict.comparisons
    assert one.state == "pass"
    assert one.figures[1].threshold > 0.125


def test_a_running_server_cannot_be_restarted(play: Any, fake_sglang: Any) -> None:
    over = {"probes": ["equivalence", "decode"], "decode": {"prompts": 2, "tokens": 8}}
    played = play(fake_sglang(), over)
    assert unfit(played.manifest.plan, ServerFacts("sglang", "0.5.21", "fake"), True) is not None
    cell = played.cells()["equivalence"]
    assert (cell.state, "restart" in cell.reason) == ("not applicable", True)
    assert not any(obs.probe == "equivalence" for obs in played.records)


def test_too_few_prompts_reach_the_lengths(play: Any, fake_sglang: Any) -> None:
    over = {**PLAN, "arms": [{"name": "none"}], "equivalence": {"prompts": 81, "lengths": [193]}}
    played = play(fakes(fake_sglang), over, owned=True)
    assert any("only 80 prompts" in warning for warning in played.manifest.arms["none"].warnings)
    # One arm has nothing to be held against but itself.
    assert played.verdict.comparisons == ()
    assert played.cells()["cold, restarted"].readings
