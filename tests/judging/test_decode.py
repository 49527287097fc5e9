"""The verdict of single-request decode on a server in memory."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from fidelity.judge import judge
from fidelity.scoring import SURE
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_APPLICABLE, NOT_EXERCISED, PASS, CellVerdict

PLAN = {"probes": ["decode"], "decode": {"tokens": 96, "prompts": 6}}
IDLE = {"target": {"assume_idle": True}}


def one_token(computed: int, _: str) -> bool:
    return computed == 1


def test_a_healthy_server_passes(play: Callable[..., Any], fake_sglang: Any) -> None:
    played = play(fake_sglang(), {**PLAN, **IDLE})
    cell = played.cells()["T=0"]
    assert (played.verdict.state, cell.state) == (PASS, PASS)
    assert cell.reason == "0 corrupt of 6 answers: at most 39.3% at 95%"
    assert (cell.exercised, cell.corrupt, cell.sends) == (6, 0, 6)
    readings = {one.name: one.value for one in cell.readings}
    assert readings["tokens"] == 96
    assert readings["NaN tokens"] == 0
    assert readings["k3 score, mean"] == 0
    assert readings["cold floor: k3 mean"] == 0


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("nan", "NaN: "),
        ("nan 500", "NaN: "),
        ("flat", "flat row"),
        ("hard flip", "are not the clean prefill's"),
        ("off-list", "are not the clean prefill's"),
    ],
)
def test_a_fault_of_one_token_fails_decode(
    fault: str, says: str, play: Callable[..., Any], fake_sglang: Any
) -> None:
    played = play(fake_sglang(fault=fault, affects=one_token), {**PLAN, **IDLE})
    cell = played.cells()["T=0"]
    assert (played.verdict.exit_code, cell.state, cell.corrupt) == (10, FAIL, 6)
    assert says in cell.reason
    assert cell.examples[0].why


def test_nan_tokens_are_counted_with_their_place(play: Callable[..., Any], fake_sglang: Any) -> None:
    cell = play(fake_sglang(fault="nan", affects=one_token), {**PLAN, **IDLE}).cells()["T=0"]
    readings = {one.name: one.value for one in cell.readings}
    assert readings["NaN tokens"] == 6 * 15
    assert readings["first bad token, earliest"] == 1
    assert readings["longest run of one id"] == 15
    assert math.isnan(readings["k3 score, mean"])


def test_a_move_without_a_wrong_token_is_seen(play: Callable[..., Any], fake_sglang: Any) -> None:
    class Surer(fake_sglang):  # type: ignore[misc]
        """Decodes with another probability than it scores."""

        def _item(self, body: Any, *rest: Any) -> Any:
            item = super()._item(body, *rest)
            for entry in item["meta_info"]["output_token_logprobs"]:
                entry[0] -= self.by
            for row in item["meta_info"]["output_top_logprobs"]:
                for entry in row:
                    entry[0] -= self.by
            return item

    Surer.by = 0.3
    cell = play(Surer(), {**PLAN, **IDLE}, name="far").cells()["T=0"]
    assert (cell.state, cell.corrupt) == (FAIL, 0)
    assert "mean |delta logprob| 0.3 nat" in cell.reason
    Surer.by = 0.1
    assert play(Surer(), {**PLAN, **IDLE}, name="near").cells()["T=0"].state == PASS


def test_what_only_noise_explains_is_no_pass(play: Callable[..., Any], fake_sglang: Any) -> None:
    played = play(fake_sglang(), {**PLAN, **IDLE})
    first, second = (
        next(obs.answer for obs in played.records if obs.role == role) for role in ("rescore", "rescore2")
    )

    def cell() -> CellVerdict:
        (arm,) = judge(played.manifest, played.records).arms
        return next(one for one in arm.cells if one.name == "T=0")

    assert cell().state == PASS
    ((token, best),) = first.scored_top[5]
    first.scored_top[5] = [(token, best + SURE + 1.0)]
    assert (cell().state, cell().corrupt) == (FAIL, 1)
    second.scored[9] = first.scored[9] - 0.8
    assert (cell().state, cell().corrupt) == (INCONCLUSIVE, 0)
    assert cell().reason == "1 of 6 answers hold tokens that only noise of its own explains"


def test_without_logprobs_it_is_not_applicable(play: Callable[..., Any], fake_sglang: Any) -> None:
    fake = fake_sglang(fault="no logprobs", affects=lambda *_: True)
    played = play(fake, {**PLAN, **IDLE})
    cell = played.cells()["T=0"]
    assert (cell.state, cell.exercised) == (NOT_APPLICABLE, 0)
    assert cell.reason == "the server gives no logprobs"
    assert played.verdict.state == INCONCLUSIVE, "nothing else was looked at"


def test_company_while_decoding_proves_nothing(play: Callable[..., Any], fake_sglang: Any) -> None:
    busy = play(fake_sglang(company=lambda look: 1), PLAN, name="busy").cells()["T=0"]
    assert (busy.state, busy.missed) == (NOT_EXERCISED, {"other requests ran at the same time": 6})
    silent = play(fake_sglang(loads=False), PLAN, name="silent")
    assert silent.cells()["T=0"].state == INCONCLUSIVE
    assert "alone" in silent.verdict.reason
    assert play(fake_sglang(), PLAN, name="told").verdict.state == PASS


def test_too_few_answers_bound_too_little(play: Callable[..., Any], fake_sglang: Any) -> None:
    plan = {**PLAN, **IDLE, "decode": {"tokens": 64, "prompts": 4}}
    cell = play(fake_sglang(), plan).cells()["T=0"]
    assert (cell.state, cell.exercised) == (INCONCLUSIVE, 4)
    assert cell.reason == "0 corrupt of 4 answers: at most 52.7% at 95%; 5 are needed for 50%"


def test_temperature_1_only_where_allowed_and_after_a_clean_leg(
    play: Callable[..., Any], fake_sglang: Any
) -> None:
    assert list(play(fake_sglang(), {**PLAN, **IDLE}, name="check").cells()) == ["T=0"]
    allowed = {**PLAN, "target": {"assume_idle": True, "allow_sampling": True}}
    fake = fake_sglang()
    sampled = play(fake, allowed, name="allowed")
    cell = sampled.cells()["T=1"]
    assert (cell.state, cell.exercised) == (PASS, 6)
    names = {one.name for one in cell.readings}
    assert "KL estimate, k3, mean" in names
    assert "first bad token, median" not in names, "sampled tokens need not be likely"
    assert {body["sampling_params"]["temperature"] for body in fake.bodies} == {0.0, 1.0}
    broken = fake_sglang(fault="nan", affects=one_token)
    after = play(broken, allowed, name="broken")
    assert (after.cells()["T=0"].state, after.cells()["T=1"].state) == (FAIL, NOT_EXERCISED)
    assert {body["sampling_params"]["temperature"] for body in broken.bodies} == {0.0}
    assert any("nothing was sampled" in warning for warning in after.verdict.warnings)


def test_a_failed_request_begins_its_prompt_again(play: Callable[..., Any], fake_sglang: Any) -> None:
    import httpx

    hooks = {9: lambda: httpx.Response(429, json={"error": {"message": "later"}})}
    played = play(fake_sglang(hooks=hooks), {**PLAN, **IDLE})
    assert played.verdict.state == PASS
    assert {obs.attempt for obs in played.records if obs.probe == "decode"} == {0, 1}
    namespaces = [obs.namespace for obs in played.records]
    assert len(set(namespaces)) == len(namespaces)


def test_a_resumed_run_sends_only_what_is_missing(play: Callable[..., Any], fake_sglang: Any) -> None:
    fake = fake_sglang()
    first = play(fake, {**PLAN, **IDLE}, stop_after=14)
    done = sum(obs.probe == "decode" for obs in first.records)
    again = play(fake, resume=first.directory)
    assert 0 < done < 18
    assert again.verdict.state == PASS
    decodes = [obs for obs in again.records if obs.role == "decode"]
    assert len({obs.group for obs in decodes}) == 6
    assert len(decodes) <= 7
