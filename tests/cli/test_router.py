"""`fidelity check --replicas N`: replicas behind one address, told by a header of their answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..fake_sglang import FakeSglang
from .conftest import Done
from .counting import serving

PLAN = """
target: {timeout: 5.0}
probes: [resend]
resend: {warmup_sends: 2, warmup_tokens: 4}
"""
SMALL = ("--prompts", "6", "--tail", "1", "--control", "33", "--max-rate", "0.7", "--assume-idle")


class Router:
    """Two servers behind one address. `sticky`: all that is sent of one prompt goes to the same; else every
    request goes to the next. `told` is the header's name."""

    def __init__(self, *servers: FakeSglang, sticky: bool = True, told: str = "x-replica-id") -> None:
        self.servers, self.sticky, self.told = servers, sticky, told
        self.homes: dict[str, int] = {}
        self.sent = 0

    def handle(self, request: httpx.Request) -> httpx.Response:
        place = 0
        if request.url.path == "/generate":
            body = json.loads(request.content)
            prompt = str(body["extra_key"]).split("/")[2].split("@")[0]
            place = self.homes.setdefault(prompt, len(self.homes) % 2) if self.sticky else self.sent % 2
            self.sent += 1
        elif request.url.path == "/tokenize":
            self.servers[1].handle(request)  # so that both know the words
        answer = self.servers[place].handle(request)
        answer.headers[self.told] = f"pod-{place}"
        return answer


@pytest.fixture
def check(here: Callable[..., Done], prompt_folder: Path, tmp_path: Path) -> Callable[..., Done]:
    (tmp_path / "plan.yaml").write_text(PLAN)

    def call(router: Any, *words: str) -> Done:
        with serving(router) as server:
            files = ("--prompt-folder", str(prompt_folder), "--config", "plan.yaml")
            return here("check", server.url, *files, *SMALL, *words)

    return call


def states(done: Done) -> dict[str, str]:
    return {arm["name"]: arm["state"] for arm in done.summary["arms"]}


def test_one_verdict_for_each_replica(check: Callable[..., Done]) -> None:
    done = check(Router(FakeSglang(), FakeSglang(fault="nan")), "--replicas", "2")
    assert states(done) == {"pod-0": "pass", "pod-1": "fail"}, done.out
    assert done.code == 10
    assert done.summary["reason"].startswith("arm pod-1:")
    assert {obs["answer"]["replica"] for obs in done.observations} == {"pod-0", "pod-1"}


def test_a_hit_of_another_replica_than_the_cold_send_proves_nothing(check: Callable[..., Done]) -> None:
    # One cache for both: every count is that of a hit, and who answered is all that speaks against it.
    both = FakeSglang()
    done = check(Router(both, both, sticky=False), "--replicas", "2")
    assert done.code == 11
    assert "pass" not in states(done).values()
    told = {why for arm in done.summary["arms"] for cell in arm["cells"] for why in cell["missed"]}
    assert "replica pod-1 answered, and pod-0 the cold send" in told


def test_a_replica_that_nobody_saw_is_no_pass(check: Callable[..., Done]) -> None:
    router = Router(FakeSglang(), FakeSglang())
    assert states(check(router, "--replicas", "3")) == {
        "pod-0": "pass",
        "pod-1": "pass",
        "1 replicas not seen": "inconclusive",
    }


def test_a_router_that_does_not_tell(check: Callable[..., Done]) -> None:
    done = check(Router(FakeSglang(), FakeSglang(), told="x-own"), "--replicas", "2")
    assert done.code == 11
    assert "2 replicas not told apart by the answers" in states(done)


def test_one_server_is_not_asked_who_it_is(check: Callable[..., Done]) -> None:
    done = check(Router(FakeSglang(), FakeSglang()))
    assert list(states(done)) == ["none"]
    assert {obs["answer"]["replica"] for obs in done.observations} == {None}


class Nameless(Router):
    """Its error pages name no pod."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle(request)
        if answer.status_code >= 400:
            del answer.headers[self.told]
        return answer


def _odd(_: int, right: str) -> bool:
    """Of half the prompts, all that is sent."""
    return right[-1:] in "13579"


def test_a_broken_answer_that_names_no_replica_is_a_failure(check: Callable[..., Done]) -> None:
    bad = FakeSglang(fault="nan 500", affects=_odd)
    done = check(Nameless(FakeSglang(), bad), "--replicas", "2", "--prompts", "16")
    assert states(done)["replica not told"] == "fail", done.out
    assert done.code == 10


def test_who_left_a_request_without_an_answer_is_not_told(check: Callable[..., Done]) -> None:
    left: list[int] = []

    def crash(request: httpx.Request) -> httpx.Response | None:
        """Fail one cold send."""
        if request.url.path == "/generate" and "@" in str(json.loads(request.content)["extra_key"]):
            left.append(1)
            if len(left) == 1:
                return httpx.Response(502, text="bad gateway")
        return None

    done = check(Nameless(FakeSglang(), FakeSglang(sees=crash)), "--replicas", "2")
    assert states(done) == {"pod-0": "pass", "pod-1": "pass", "replica not told": "inconclusive"}
    assert done.code == 11
