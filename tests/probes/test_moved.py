"""A server without namespaces that keeps one slot: where hits resume, what is moved behind other words."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fidelity import shift_judge
from fidelity.engines.facts import PROMPT_END, ServerFacts
from fidelity.events import Sent
from fidelity.evidence import groups_of, missed
from fidelity.observations import Observation, Recorder
from fidelity.plan import RunPlan, Thresholds, build
from fidelity.plan_probes import Resend
from fidelity.probes.cells import Cell, choose_cells, plan_hit
from fidelity.probes.checkpoint import cells_from
from fidelity.probes.checkpoint import parts as checkpoint_parts
from fidelity.probes.moved import LEAD, WORDS, behind_words, led
from fidelity.probes.prediction import CachePrediction
from fidelity.probes.resend import Group, measure, parts, run_group, sends_per_group
from fidelity.probes.session import Session
from fidelity.servers.running import RunningServer
from fidelity.verdicts import INCONCLUSIVE, PASS, CellVerdict

FACTS = ServerFacts("llamacpp", "b1", "fake", grid=1, strategy=PROMPT_END, vocab_size=512)


@dataclass
class Slot:
    """llama.cpp's one slot by tokens. `recurrent`: states only at the end of a prompt and four tokens before
    it. `moves`: tokens behind others are served from where they stand."""

    recurrent: bool = False
    moves: bool = False
    held: list[int] = field(default_factory=list)
    states: set[int] = field(default_factory=set)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/completion":
            return httpx.Response(404)
        body = json.loads(request.content)
        self.bodies.append(body)
        ids = body["prompt"]
        cached = self._cached(ids) if body["cache_prompt"] else 0
        self.states = {n for n in self.states if n <= cached} | {len(ids) - 4, len(ids)}
        self.held = ids
        entry = {"id": 7, "logprob": -0.01, "top_logprobs": [{"id": 7, "logprob": -0.01}]}
        timings = {"cache_n": cached, "prompt_n": len(ids) - cached}
        return httpx.Response(
            200, json={"tokens": [7], "completion_probabilities": [entry], "timings": timings}
        )

    def _cached(self, ids: list[int]) -> int:
        pairs = zip(self.held, ids, strict=False)
        common = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(self.held), len(ids)))
        common = min(common, len(ids) - 1)
        if self.recurrent:
            return max((n for n in self.states if n <= common), default=0)
        behind = any(self.held[n : n + len(ids)] == ids for n in range(1, len(self.held)))
        return len(ids) - 1 if self.moves and behind else common


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[[Slot], Session]]:
    recorder = Recorder(tmp_path / "observations.jsonl")

    def make(slot: Slot) -> Session:
        client = httpx.Client(base_url="http://fake", transport=httpx.MockTransport(slot.handle))
        server = RunningServer(url="http://fake", owned=True, client=client)
        return Session("none", "run-1", server, FACTS, recorder, itertools.count().__next__, vocab_size=512)

    yield make
    recorder.close()


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("tail", [1, 2, 4, 33])
def test_every_tail_is_reached_whatever_the_model_keeps(session: Any, recurrent: bool, tail: int) -> None:
    slot = Slot(recurrent=recurrent)
    cell = Cell("c", "suspect", 192 + tail, tail, "")
    group = Group("a/b", "x", range(cell.length), cell, plan_hit(cell, FACTS, 1))
    records = [
        one for one in run_group(session(slot), group, Resend(), 1, 0.125) if isinstance(one, Observation)
    ]
    assert len(records) == sends_per_group(group.how, Resend())
    hits = [one for one in records if one.role == "hit"]
    assert [one.answer.cached_tokens for one in hits] == [192, 192]
    assert all(one.reached for one in hits)
    assert [one.answer.cached_tokens for one in records if one.role != "hit"] == [0] * (len(records) - 2)


def test_a_prompt_end_is_all_that_is_known() -> None:
    cache = CachePrediction(1, PROMPT_END)
    assert [cache.send(length) for length in (100, 100, 101, 101, 130)] == [0, 0, 100, 100, 101]


def test_the_cells_of_a_server_that_resumes_anywhere() -> None:
    cells = choose_cells(Resend(), FACTS)
    names = [cell.name for cell in cells if not cell.moved]
    assert names[:2] == ["L=98 tail=1", "L=130 tail=33"]
    assert {"L=193 tail=1", "L=196 tail=4", "L=225 tail=33", "L=321 tail=1", "L=353 tail=33"} <= set(names)
    assert [cell.name for cell in cells if cell.moved] == ["L=130 moved"]


def test_given_lengths_resume_one_token_before_their_end_beside_a_control() -> None:
    cells = choose_cells(Resend(lengths=(200,)), FACTS)
    assert [(cell.length, cell.tail) for cell in cells if not cell.moved] == [(200, 1), (232, 33)]


def test_a_moved_prompt_shares_no_beginning_with_what_was_sent_before() -> None:
    ids = list(range(100, 200))
    assert len(led(ids, "a")) == len(ids) + LEAD
    assert led(ids, "a") == led(ids, "a") != led(ids, "b")
    words = behind_words(ids)
    assert (words[WORDS:], words[0] != ids[0]) == (ids, True)
    assert behind_words([5] * 60 + [6] * 40)[0] == 6


def moved_sends(session: Session) -> list[Observation]:
    (cell,) = (cell for cell in choose_cells(Resend(positions=(64,)), FACTS) if cell.moved)
    fitted = SimpleNamespace(ids=list(range(cell.length - LEAD)), answer="x")
    prompts = SimpleNamespace(fit=lambda prompt, length: fitted, top_k=lambda prompt, slack: 20)
    plan: RunPlan = build({"target": {"kind": "attach", "url": "http://fake"}})
    record = SimpleNamespace(min_tail=1, warnings=[])
    at: Any = SimpleNamespace(
        plan=plan, session=session, facts=FACTS, record=record, prompts=prompts, arm="none", earlier=[]
    )
    sent = [one.observation for one in measure(at, cell, "a/b") if isinstance(one, Sent)]
    (part,) = parts(plan.with_prompts(1), FACTS, [cell], 1)
    assert part.requests == len(sent)
    assert part.prompt_tokens == sum(one.length for one in sent)
    (group,) = groups_of(sent)
    assert [missed(group, hit, cell, structural=False) for hit in group.hits] == [None]
    return sent


@pytest.mark.parametrize(("moves", "served"), [(False, 0), (True, 96)])
def test_a_moved_prompt_is_hit_before_its_own_states_are_kept(session: Any, moves: bool, served: int) -> None:
    slot = Slot(moves=moves)
    sent = moved_sends(session(slot))
    assert [one.role for one in sent] == ["seed", "hit", "cold", "cold2"]
    assert [one.answer.cached_tokens for one in sent] == [0, served, 0, 0]
    assert slot.bodies[0]["prompt"][WORDS:] == slot.bodies[1]["prompt"] == slot.bodies[2]["prompt"]


def test_a_checkpoint_is_the_end_of_what_was_sent_before_it() -> None:
    plan = build({"checkpoint": {"prompts": 1}, "target": {"kind": "attach", "url": "http://fake"}})
    (part,) = checkpoint_parts(plan, FACTS, (), 1)
    assert part.requests == 3 * len(cells_from(1))


@pytest.mark.parametrize(
    ("cached", "state"), [({"0": 30}, PASS), ({"0": 29, "8": 1}, PASS), ({"0": 29, "9": 1}, INCONCLUSIVE)]
)
def test_states_computed_behind_other_words_are_no_pass(cached: dict[str, int], state: str) -> None:
    cell = Cell("L=97 moved", "suspect", 97, 33, "", moved=True)
    verdict = CellVerdict(
        arm="none", probe="resend", name=cell.name, kind="moved", state=PASS, reason="0 of 30"
    )
    verdict = replace(verdict, kind="suspect", cached=cached, sends=30)
    size = {shift_judge.JSD: {}, shift_judge.MOVE: {}}
    measured = shift_judge.Measured(cell, size, size, slack=0.0)
    told = shift_judge.apply(verdict, measured, [shift(cell)], Thresholds())
    assert told.state == state
    assert ("behind other words" in told.reason) is (state != PASS)


def shift(cell: Cell) -> shift_judge.Shift:
    found: Any = SimpleNamespace(
        mean_difference=0.0, margin=1.0, bounded=True, more_prompts=0, upper=0.0, n=30
    )
    return shift_judge.Shift(shift_judge.JSD, cell.name, found, adjusted=1.0)
