"""Which arm an answer behind a router belongs to, and what those of nobody decide, on hand-made records."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fidelity.judge import judge
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation
from fidelity.plan import build
from fidelity.routed import NOT_TOLD, by_replica, lay_over

Make = Callable[..., Observation]


def manifest() -> Manifest:
    plan = build(
        {"target": {"kind": "attach", "url": "http://router:1", "replicas": 2}, "probes": ["resend"]}
    )
    return Manifest("run", "2026-01-01T00:00:00+0000", plan, arms={"none": ArmRecord("none", 1)})


def told(make: Make) -> list[Observation]:
    colds = [
        make(role="cold", group=f"p{n}@193", prompt=f"p{n}", replica=f"pod-{n}", cached_tokens=0)
        for n in (0, 1)
    ]
    return [*colds, make(group="p0@193", prompt="p0", replica=None, status=502, error="HTTP 502")]


def test_all_that_is_told_has_no_such_arm(observation: Make) -> None:
    warmup = observation(role="warmup", status=502, error="HTTP 502")
    moved, records = by_replica(manifest(), [warmup, *told(observation)])
    assert [arm.name for arm in moved.plan.arms] == ["pod-0", "pod-1"]
    assert [obs.arm for obs in records] == ["none", "pod-0", "pod-1", "pod-0"]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"status": 400, "error": "HTTP 400: nan", "faces": {"http nan": 1}}, "fail"),
        ({"status": 200, "faces": {"nan": 1}}, "fail"),
        ({"status": 502, "error": "HTTP 502: bad gateway"}, "inconclusive"),
    ],
)
@pytest.mark.parametrize("role", ["cold", "screen", "decode"])
def test_what_nobody_is_named_for(role: str, answer: dict[str, Any], state: str, observation: Make) -> None:
    stray = observation(role=role, group="p2@193", prompt="p2", probe="draft", **answer)
    verdict = judge(manifest(), [*told(observation), stray])
    assert {arm.name: arm.state for arm in verdict.arms}[NOT_TOLD] == state
    assert verdict.state == state


@pytest.mark.parametrize(("error", "state"), [("HTTP 429: later", "inconclusive"), (None, "pass")])
def test_cells_that_pass_do_not_make_up_for_a_failed_request(
    error: str | None, state: str, observation: Make
) -> None:
    arm = replace(judge(manifest(), []).arms[0], name=NOT_TOLD, state="pass")
    stray = observation(arm=NOT_TOLD, error=error)
    assert lay_over(arm, [stray]).state == state
