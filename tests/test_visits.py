"""In which order the servers of the arms are started, and what runs on each start."""

from collections.abc import Callable
from typing import Any

import pytest

from fidelity.plan import build
from fidelity.runner import visits

ARMS = {"arms": [{"name": "none"}, {"name": "splitk", "guard": "splitk"}]}


@pytest.mark.parametrize(
    ("probes", "order"),
    [
        (["resend", "decode"], ["none 1", "splitk 1"]),
        (["speed"], ["none 1", "splitk 1", "splitk 2", "none 2"]),
        (["resend", "equivalence"], ["none 1", "splitk 1", "splitk 2", "none 2"]),
    ],
)
def test_arms_that_are_measured_twice_are_started_abba(probes: list[str], order: list[str]) -> None:
    plan = build({"probes": probes, **ARMS})
    assert [f"{arm.name} {visit}" for arm, visit in visits(plan)] == order


def test_a_running_server_is_not_ours_to_start_again() -> None:
    plan = build({"probes": ["speed"], "target": {"kind": "attach", "url": "http://h"}})
    assert [visit for _, visit in visits(plan)] == [1]


def test_the_second_start_runs_only_what_needs_it(play: Callable[..., Any], fake_sglang: Any) -> None:
    says = {"engine": "fidelity-embedded", "fault": "none"}
    over = {
        "target": {"kind": "embedded", "url": None, "fault": "none"},
        "probes": ["decode", "equivalence"],
        "decode": {"tokens": 12, "prompts": 6},
        "equivalence": {"prompts": 2, "lengths": [193]},
    }
    played = play(fake_sglang(info=says), over, owned=True)
    probes = {(obs.visit, obs.probe) for obs in played.records} - {(1, "resend")}
    assert probes == {(1, "warmup"), (1, "decode"), (1, "equivalence"), (2, "warmup"), (2, "equivalence")}
    assert [obs.order for obs in played.records] == list(range(len(played.records)))
