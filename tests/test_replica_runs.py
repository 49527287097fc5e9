"""Runs of several replicas: what one does holds up no other."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fidelity.probes.session import PATIENCE

from .fake_sglang import FakeSglang

ARMS = [{"name": name, "url": f"http://{name}:1"} for name in "ab"]
OVER = {"target": {"assume_idle": True}, "arms": ARMS}


def never(request: httpx.Request) -> httpx.Response | None:
    if request.url.path == "/generate":
        raise httpx.ReadTimeout("timed out", request=request)
    return None


def slowly(request: httpx.Request) -> httpx.Response | None:
    if request.url.path == "/generate":
        time.sleep(0.2)
    return None


@pytest.mark.parametrize("first", [True, False])
def test_one_that_never_answers_is_left_after_a_few_requests(play: Callable[..., Any], first: bool) -> None:
    deaf = FakeSglang(sees=never)
    names = "ab" if first else "ba"
    played = play(dict(zip(names, (deaf, FakeSglang()), strict=True)), OVER)
    states = {arm.name: arm.state for arm in played.verdict.arms}
    assert states == {names[0]: "could not run", names[1]: "pass"}
    assert played.verdict.exit_code == 3
    assert deaf.paths.count("/generate") == PATIENCE
    assert f"did not answer {PATIENCE} requests in a row" in played.verdict.reason


def test_a_failure_of_another_comes_before_one_that_could_not_run(play: Callable[..., Any]) -> None:
    played = play({"a": FakeSglang(sees=never), "b": FakeSglang(fault="nan")}, OVER)
    assert played.verdict.exit_code == 10
    assert played.verdict.reason.startswith("arm b:")


def test_a_slow_one_is_left_when_its_share_of_the_time_is_over(play: Callable[..., Any]) -> None:
    played = play({"a": FakeSglang(sees=slowly), "b": FakeSglang()}, {**OVER, "max_minutes": 0.15})
    states = {arm.name: arm.state for arm in played.verdict.arms}
    assert states == {"a": "inconclusive", "b": "pass"}
    assert played.verdict.exit_code == 11
    assert any("its share of the minutes" in warning for warning in played.verdict.arms[0].warnings)
