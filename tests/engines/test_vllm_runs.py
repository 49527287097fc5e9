"""Whole runs against a vLLM in memory: dense, and a hybrid whose cold send runs the hit's own last step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from fidelity import arm_judge
from fidelity.engines import vllm
from fidelity.judge import judge
from fidelity.observations import Observation
from fidelity.probes.prediction import CachePrediction
from fidelity.servers.running import RunningServer

from ..fake_vllm import Blocks, FakeVLLM

SUSPECT, CONTROL = "L=193 tail=1", "L=225 tail=33"
LONGER = f"{SUSPECT} in a longer prompt"
THRESHOLDS = {"max_rate": 0.4, "slack": 0.1}
COUNTED = 6

Runs = Callable[..., Any]


@pytest.fixture
def runs(play: Callable[..., Any]) -> Runs:
    def start(fake: FakeVLLM, name: str = "run", **over: Any) -> Any:
        return play(fake, {"thresholds": THRESHOLDS, **over}, name=name)

    return start


def of(role: str, records: list[Observation]) -> list[Observation]:
    return [record for record in records if record.role == role]


def test_a_healthy_dense_server_passes(runs: Runs) -> None:
    fake = FakeVLLM()
    played = runs(fake)
    assert (played.verdict.exit_code, {cell.state for cell in played.cells().values()}) == (0, {"pass"})
    assert not of("longer", played.records)
    assert all(hit.reached and hit.alone for hit in of("hit", played.records))
    assert max(body["logprobs"] for body in fake.bodies) == 20


@pytest.mark.parametrize(("fault", "rule"), [("nan", "NaN"), ("flat", "flat row"), ("hard flip", None)])
def test_a_dense_fault_at_one_token_fails(fault: str, rule: str | None, runs: Runs) -> None:
    played = runs(FakeVLLM(fault=fault))
    cell = played.cells()[SUSPECT]
    assert (cell.state, cell.corrupt, played.verdict.exit_code) == ("fail", COUNTED, 10)
    assert list(cell.rules) == ([rule] if rule else [])
    if fault == "nan":
        assert cell.faces == {"http nan": 12}


def test_a_healthy_hybrid_passes_by_the_longer_prompt(runs: Runs) -> None:
    fake = FakeVLLM(hybrid=True)
    played = runs(fake)
    cells = played.cells()
    assert set(cells) >= {SUSPECT, CONTROL, LONGER, f"{CONTROL} in a longer prompt"}
    assert (played.verdict.exit_code, {cell.state for cell in cells.values()}) == (0, {"pass"})
    assert cells[LONGER].exercised == COUNTED
    assert "judged by 'L=193 tail=1 in a longer prompt'" in cells[SUSPECT].reason
    assert any("same last step" in message for message in played.verdict.arms[0].warnings)
    sent = of("longer", played.records)
    assert len(sent) == 2 * COUNTED
    assert {record.length for record in sent} == {193 + 32, 225 + 32}
    assert all(len(record.answer.scored_top) == 32 for record in sent)


@pytest.mark.parametrize("fault", ["hard flip", "off-list", "moved", "nan", "flat"])
def test_a_fault_that_cold_and_hit_share_fails(fault: str, runs: Runs) -> None:
    count = 12 if fault == "moved" else COUNTED
    limits = {**THRESHOLDS, "elevated_move": 0.2} if fault == "moved" else THRESHOLDS
    played = runs(FakeVLLM(hybrid=True, fault=fault), prompts={"count": count}, thresholds=limits)
    cells = played.cells()
    agreeing = fault in ("hard flip", "off-list", "moved")
    assert (cells[LONGER].state, played.verdict.exit_code) == ("fail", 10)
    assert cells["L=193 cold"].state == ("pass" if agreeing else "fail")
    assert {cells[name].state for name in (CONTROL, f"{CONTROL} in a longer prompt")} == {"pass"}
    if agreeing:
        assert (cells[SUSPECT].corrupt, cells[SUSPECT].agreement) == (0, {"same": 2 * count})
        assert cells[SUSPECT].state in ("inconclusive", "fail")
    if fault == "nan":
        assert "NaN in 12 sends" in cells[SUSPECT].reason
        assert "cold and hit share the fault" in cells[SUSPECT].reason
    if fault in ("hard flip", "off-list"):
        assert cells[LONGER].corrupt == COUNTED
    if fault == "moved":
        assert (cells[LONGER].corrupt, cells[SUSPECT].state) == (0, "inconclusive")
        assert "the longer prompt contradicts" in cells[SUSPECT].reason
        assert "(margin 0.2, p " in cells[LONGER].reason


def test_a_shift_that_kernels_for_one_token_could_explain_is_no_pass_and_no_alarm(runs: Runs) -> None:
    played = runs(FakeVLLM(hybrid=True, fault="moved"), prompts={"count": 12})
    cell = played.cells()[LONGER]
    assert (cell.state, played.verdict.exit_code) == ("inconclusive", 11)
    assert "the logprobs moved" in cell.reason
    assert cell.reason.endswith("can be as far apart")


def test_a_healthy_step_of_another_size_that_rounds_differently_is_no_alarm(runs: Runs) -> None:
    played = runs(
        FakeVLLM(hybrid=True, fault="near-tie", top=0.5, second=0.46),
        thresholds={"max_rate": 0.4, "slack": 1},
    )
    cells = played.cells()
    assert cells[LONGER].agreement == {"near-tie": COUNTED}
    assert cells[LONGER].state == "pass"


def test_without_the_longer_prompt_nothing_passes(runs: Runs) -> None:
    played = runs(FakeVLLM(hybrid=True))
    without = [record for record in played.records if record.role != "longer"]
    verdict = judge(played.manifest, without)
    cells = {cell.name: cell for cell in verdict.arms[0].cells}
    assert LONGER not in cells
    assert (cells[SUSPECT].state, verdict.exit_code) == ("inconclusive", 11)
    assert cells[SUSPECT].reason.endswith("no longer prompt was scored")


def test_a_longer_prompt_that_came_from_the_cache_proves_nothing(runs: Runs) -> None:
    played = runs(FakeVLLM(hybrid=True))
    for record in of("longer", played.records):
        record.answer.cached_tokens = 192
    cell = {cell.name: cell for cell in judge(played.manifest, played.records).arms[0].cells}[LONGER]
    assert (cell.state, list(cell.missed)) == (
        "not exercised",
        ["the longer prompt was served from the cache"],
    )


def test_comparing_alone_is_not_applicable_where_cold_and_hit_share_a_step(runs: Runs) -> None:
    played = runs(FakeVLLM(hybrid=True), probes=["sweep", "checkpoint", "impact"])
    arm = played.verdict.arms[0]
    assert set(arm.skipped) == {"sweep", "checkpoint", "impact"}
    assert all("same last step" in why for why in arm.skipped.values())
    assert arm.state == "inconclusive"


@pytest.mark.parametrize("caching", [False, True])
def test_a_second_server_with_its_cache_off_tells_the_shared_fault(
    caching: bool, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeVLLM(hybrid=True, fault="hard flip")
    trusted = FakeVLLM(hybrid=True, fault="hard flip", caching=caching, words=fake.words)

    @contextmanager
    def second(_: Any) -> Iterator[Any]:
        with trusted.client() as client:
            yield RunningServer(url="http://other", owned=False, client=client), vllm.facts(client)

    monkeypatch.setattr("fidelity.probes.reference.reference_server", second)
    played = runs(fake, reference="http://other")
    cell = played.cells()["L=193 cold against the reference"]
    assert cell.state == ("pass" if caching else "fail")
    assert played.verdict.exit_code == 10
    warned = any("may share a fault" in message for message in played.verdict.arms[0].warnings)
    assert warned is caching


def test_decode_is_scored_by_prompt_logprobs(runs: Runs) -> None:
    decode = {"prompts": 6, "tokens": 36}
    loose = {"max_rate": 0.4, "slack": 0.1, "coarse_rate": 0.9}
    played = runs(FakeVLLM(), probes=["decode"], decode=decode, thresholds=loose)
    assert [cell.state for cell in played.cells().values()] == ["pass"]
    wrong = FakeVLLM(fault="hard flip", affects=lambda computed, _: computed == 1)
    assert runs(wrong, probes=["decode"], decode=decode, thresholds=loose, name="two").verdict.exit_code == 10


def test_a_server_that_tells_no_cached_tokens_is_told_the_flag(runs: Runs) -> None:
    played = runs(FakeVLLM(details=False))
    assert played.verdict.exit_code == 11
    warnings = played.verdict.arms[0].warnings
    assert any("--enable-prompt-tokens-details" in message for message in warnings)
    assert not any("details" in message for message in runs(FakeVLLM(), name="two").verdict.arms[0].warnings)


def test_no_more_logprobs_are_asked_for_than_the_server_tells(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = vllm.facts
    monkeypatch.setattr(vllm, "facts", lambda client: replace(told(client), max_top_k=7))
    fake = FakeVLLM(most=7, top=0.5, second=0.3)
    played = runs(fake)
    assert max(body["logprobs"] for body in fake.bodies) == 7
    assert not any(record.answer.failed for record in played.records)


def test_the_rest_of_a_killed_run_sends_each_longer_prompt_once(play: Callable[..., Any]) -> None:
    over = {"thresholds": THRESHOLDS}
    stopped = play(FakeVLLM(hybrid=True), over, stop_after=22)
    resumed = play(FakeVLLM(hybrid=True), over, resume=stopped.directory)
    assert resumed.verdict.exit_code == 0
    sent = [(record.group, record.attempt) for record in of("longer", resumed.records)]
    assert len(sent) == len(set(sent))


def test_the_longer_cells_do_not_exist_elsewhere(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_judge.longer, "judge", lambda *given: pytest.fail("judged") if given[1] else {})
    assert runs(FakeVLLM()).verdict.exit_code == 0


def test_the_prediction_is_what_the_blocks_of_a_hybrid_serve() -> None:
    for lengths in ((256, 256, 257, 257), (193, 256, 320, 200), (64, 65, 65, 63), (300, 200, 200, 300)):
        blocks, cache = Blocks(64, hybrid=True), CachePrediction(64, "align")
        served = [blocks.send(tuple(range(length))) for length in lengths]
        assert [cache.send(length) for length in lengths] == served
    assert CachePrediction(64, "align").send(256) == 0
    cache = CachePrediction(64, "align")
    assert [cache.send(256), cache.send(256)] == [0, 192]
