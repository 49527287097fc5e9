"""Whole runs on a server that others may use, in memory: company, unknown vocabularies, ranks, warnings."""

import json
from typing import Any

import httpx
import pytest

from fidelity import events
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS

SUSPECT, CONTROL = "L=193 tail=1", "L=225 tail=33"
IDLE = {"target": {"assume_idle": True}}


def said(played: Any) -> str:
    return "\n".join(event.message for event in played.events if isinstance(event, events.Warning))


def test_hits_that_were_alone_pass(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang())
    assert played.verdict.exit_code == 0
    hits = [one for one in played.records if one.role == "hit"]
    assert {(one.alone, one.computed) for one in hits} == {(True, 1), (True, 33)}
    assert {one.alone for one in played.records if one.role != "hit"} == {None}


def test_company_hides_a_fault_and_is_no_pass(play: Any, fake_sglang: Any) -> None:
    """Somebody decodes all the time: every batch is one larger, and the fault at one token never shows."""
    busy = {"company": lambda look: 1, "fault": "nan", "affects": lambda computed, _: computed + 1 == 1}
    played = play(fake_sglang(**busy))
    assert (played.verdict.state, played.verdict.exit_code) == (INCONCLUSIVE, 11)
    suspect = played.cells()[SUSPECT]
    assert (suspect.state, suspect.reason) == (
        NOT_EXERCISED,
        "other requests ran at the same time (12 sends)",
    )
    assert played.cells()[CONTROL].state == PASS
    assert "1 requests of others run now" in said(played)


def test_an_assumption_does_not_outweigh_evidence(play: Any, fake_sglang: Any) -> None:
    assert play(fake_sglang(company=lambda look: 1), IDLE).verdict.exit_code == 11


def test_corruption_in_company_is_corruption_all_the_same(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(company=lambda look: 1, fault="nan"))
    assert (played.verdict.state, played.verdict.exit_code) == (FAIL, 10)


def test_one_request_in_between_costs_one_hit(play: Any, fake_sglang: Any) -> None:
    """A health probe of one token, seen by the tokens it computed alone."""
    fake = fake_sglang()
    fake.others = lambda look: int(look >= 5)
    played = play(fake)
    alone = [one.alone for one in played.records if one.role == "hit"]
    assert alone.count(False) == 1
    assert played.verdict.exit_code == 0


@pytest.mark.parametrize("fault", ["none", "nan"])
def test_a_server_that_tells_no_load_cannot_pass(fault: str, play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(loads=False, fault=fault)
    played = play(fake)
    suspect = played.cells()[SUSPECT]
    if fault == "nan":
        assert (suspect.state, played.verdict.exit_code) == (FAIL, 10)
        return
    assert (suspect.state, played.verdict.exit_code) == (INCONCLUSIVE, 11)
    assert suspect.reason.startswith("nothing shows that 12 of 12 re-sends were alone on the server")
    assert played.cells()[CONTROL].state == PASS
    assert "no suspect cell can pass without --assume-idle" in said(played)
    assert fake.paths.count("/v1/loads") == 2  # it is not asked again and again


def test_assume_idle_is_believed_and_reported(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(loads=False), IDLE)
    assert played.verdict.exit_code == 0
    assert "assumed, not shown" in said(played)
    assert any("--assume-idle" in warning for warning in played.verdict.warnings)


def test_a_server_of_ours_needs_no_load_figures(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(loads=False, info={"engine": "fidelity-embedded", "guard": [], "fault": "none"})
    played = play(fake, {"target": {"kind": "embedded", "fault": "none"}}, owned=True)
    assert played.verdict.exit_code == 0
    assert "guards unknown" not in said(played)


def test_load_figures_that_contradict_the_count_of_cached_tokens(play: Any, fake_sglang: Any) -> None:
    """The answer says that one token was computed, the server's own total does not move."""
    played = play(fake_sglang(says_computed=lambda computed: 7))
    suspect = played.cells()[SUSPECT]
    assert suspect.state == NOT_EXERCISED
    assert suspect.reason == "the server's load figures count 0 tokens computed, not 1 (12 sends)"
    assert played.verdict.exit_code == 11


def test_old_load_figures_without_tokens_are_enough(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(says_computed=lambda computed: None))
    assert played.verdict.exit_code == 0


def test_an_unknown_vocabulary_is_asked_for_where_that_is_harmless(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"vocab_size": None, "version": "0.5.21"})
    played = play(fake)
    assert played.verdict.exit_code == 0
    assert fake.bodies[0]["token_ids_logprob"] == [1_000_000_000]
    assert all("input_ids" in body for body in fake.bodies)
    assert played.manifest.arms["none"].facts["vocab_size"] == 512


def test_text_is_sent_where_the_vocabulary_stays_unknown(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"vocab_size": None, "version": "0.5.17"})
    played = play(fake, {"target": {"allow_load": True}})
    assert played.verdict.exit_code == 0
    assert all("text" in body and "input_ids" not in body for body in fake.bodies)
    assert isinstance(fake.bodies[2]["text"], list)
    assert 1_000_000_000 not in json.dumps(fake.bodies, default=str).split()
    assert {one.answer.prompt_tokens for one in played.records if one.role == "hit"} == {193, 225}
    assert "prompts are sent as text" in said(played)
    assert fake.paths.count("/detokenize") < len(fake.bodies)  # once for each prompt and length


def test_what_is_scored_and_what_was_read_before_goes_as_ids(play: Any, fake_sglang: Any) -> None:
    """Words of an answer can make other tokens, and a list of texts is admitted one by one."""
    fake = fake_sglang(info={"version": "0.5.17", "vocab_size": None})
    plan = {"probes": ["decode", "batch"], "decode": {"tokens": 48, "prompts": 6}, "batch": {"sizes": [2]}}
    played = play(fake, {**plan, "target": {"assume_idle": True, "allow_load": True}})
    scored = [body for body in fake.bodies if body["logprob_start_len"] == 0]
    rows = [body for body in fake.bodies if isinstance(body["extra_key"], list)][1:]
    assert len(scored) > 12
    assert all("input_ids" in body for body in scored)
    assert rows
    assert all("input_ids" in body for body in rows)
    assert played.cells()["T=0"].state == "pass"


def test_a_text_that_is_read_otherwise_ends_the_run(play: Any, fake_sglang: Any) -> None:
    """As by a server that adds a token of its own at the start."""
    unknown = {"vocab_size": None, "version": "0.5.17"}
    played = play(fake_sglang(info=unknown, says_prompt=lambda count: count + 1))
    assert played.verdict.exit_code == 3
    assert "the server reads 226 tokens in the text of a prompt of 225" in (played.manifest.error or "")


@pytest.mark.parametrize(("version", "key"), [("0.5.21", "routed_dp_rank"), ("0.5.9", "data_parallel_rank")])
def test_the_rank_is_pinned_by_its_name_in_that_release(
    version: str, key: str, play: Any, fake_sglang: Any
) -> None:
    fake = fake_sglang(info={"dp_size": 2, "version": version})
    played = play(fake)
    measured = [body for body, one in zip(fake.bodies, played.records, strict=True) if one.role == "hit"]
    assert {body.get(key) for body in measured} == {0}
    assert "data-parallel" in said(played)


def test_another_rank_than_the_cold_sends_proves_nothing(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"dp_size": 2})
    plain = fake._generate

    def ranked(body: dict[str, Any]) -> httpx.Response:
        data = plain(body).json()
        data["meta_info"]["dp_rank"] = int(data["meta_info"]["cached_tokens"] > 0)
        return httpx.Response(200, json=data)

    fake._generate = ranked
    played = play(fake)
    assert played.cells()[SUSPECT].reason == "DP rank 1 answered, and rank 0 the cold send (12 sends)"
    assert played.verdict.exit_code == 11


def test_what_makes_a_test_vacuous_is_told_before_the_first_request(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"chunked_prefill_size": 128, "moe_runner_backend": "triton"})
    played = play(fake)
    kinds = [type(event) for event in played.events]
    assert kinds.index(events.Warning) < kinds.index(events.Sent)
    for id in ("chunked-prefill: a cold send of 225 tokens", "moe-triton:", "guards unknown:"):
        assert id in said(played)
        assert any(id in warning for warning in played.verdict.warnings)


def test_what_is_sent_is_what_was_foretold(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang())
    ready = next(event for event in played.events if isinstance(event, events.ServerReady))
    assert ready.requests == len(played.records)


def test_requests_run_out(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang()
    played = play(fake, {"max_requests": 20})
    assert len(fake.bodies) == len(played.records) == 20
    assert played.manifest.status == "out of requests"
    assert (played.verdict.state, played.verdict.exit_code) == (INCONCLUSIVE, 11)
    resumed = play(fake_sglang(words=fake.words), resume=played.directory)
    assert len(resumed.records) == 40
