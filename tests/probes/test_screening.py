"""The choice of prompts by the first arm."""

from collections.abc import Callable
from typing import Any


def test_a_screen_leaves_the_groups_namespaces_alone(play: Callable[..., Any], fake_sglang: Any) -> None:
    played = play(fake_sglang())
    screens = [one for one in played.records if one.role == "screen"]
    groups = [one for one in played.records if one.role in ("cold", "cold2", "hit")]
    assert len(screens) == 6
    assert len({one.namespace for one in screens}) == 6
    assert not {one.namespace for one in screens} & {one.namespace for one in groups}
    assert {one.length for one in screens} == {225}
    assert all(one.answer.cached_tokens == 0 for one in groups if one.role != "hit")


def test_the_second_arm_takes_the_first_ones_choice(play: Callable[..., Any], fake_sglang: Any) -> None:
    says = {"engine": "fidelity-embedded", "fault": "none"}
    over = {
        "target": {"kind": "embedded", "url": None, "fault": "none"},
        "arms": [{"name": "none"}, {"name": "again"}],
    }
    words = ["!"]
    played = play({name: fake_sglang(info=says, words=words) for name in ("none", "again")}, over)
    assert {one.arm for one in played.records if one.role == "screen"} == {"none"}
    first, second = played.manifest.arms.values()
    assert first.prompts == second.prompts
    assert len(first.prompts) == 6


def test_a_probe_without_prompts_of_the_families_screens_none(
    play: Callable[..., Any], fake_sglang: Any
) -> None:
    played = play(fake_sglang(), {"probes": ["decode"], "decode": {"tokens": 24, "prompts": 6}})
    assert {one.role for one in played.records} == {"warmup", "decode", "rescore", "rescore2"}
