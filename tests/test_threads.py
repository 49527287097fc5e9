"""The figures of the two public reports as simulated records: each must get the verdict that it deserves."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fidelity.judge import judge
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation
from fidelity.plan import RunPlan, Thresholds
from fidelity.stats.divergence import divergences
from fidelity.stats.topk import TopK, stack
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict, RunVerdict

from .calibration.simulate import Corruption, Server, cells, observe

TAIL_1, TAIL_2, TAIL_33 = cells()


def simulated(server: Server, prompts: int, hits: int = 2, seed: int = 0) -> list[Observation]:
    return observe(server, prompts, hits, cells(), np.random.default_rng(seed))


def judged(records: Sequence[Observation], limits: Thresholds | None = None) -> RunVerdict:
    plan = RunPlan(probes=("resend",), thresholds=limits or Thresholds())
    manifest = Manifest("r", "s", plan, status="complete")
    manifest.arms["none"] = ArmRecord("none", 1, cells=cells())
    return judge(manifest, records)


def cell(verdict: RunVerdict, name: str) -> CellVerdict:
    return next(one for one in verdict.arms[0].cells if one.name == name)


def kl_to_cold(records: Sequence[Observation], name: str, role: str) -> float:
    """Mean lower bound of KL(cold || send) over a cell's sends of one role, in nats."""
    cold = {one.group: one for one in records if one.role == "cold"}
    sends = [one for one in records if one.cell == name and one.role == role]

    def rows(found: Sequence[Observation]) -> TopK:
        return stack([TopK.of(*map(list, zip(*one.answer.top[0], strict=True))) for one in found])

    asked = stack([TopK.of(*map(list, zip(*one.answer.asked[0], strict=True))) for one in sends])
    return float(
        divergences(rows([cold[one.group] for one in sends]), rows(sends), q_asked=asked).kl_lower.mean()
    )


def test_24_of_24_re_sends_of_6_prompts_corrupted() -> None:
    """Tail 1 wrong in every one of 4 re-sends of 6 prompts, tail 2 and 33 clean."""
    verdict = judged(simulated(Server("zero", Corruption("salad", 1.0)), prompts=6, hits=4))
    suspect = cell(verdict, TAIL_1.name)
    assert (verdict.state, suspect.state) == (FAIL, FAIL)
    assert (suspect.corrupt_sends, suspect.sends) == (24, 24)
    assert (suspect.corrupt, suspect.exercised) == (6, 6)
    # Six prompts, not 24 sends: re-sends of one prompt are no new evidence.
    assert suspect.reason == "6 corrupt prompts of 6: at least 60.7% at 95%"
    for control in (TAIL_2, TAIL_33):
        assert cell(verdict, control.name).corrupt == 0
        assert cell(verdict, control.name).state == INCONCLUSIVE  # 0 of 6 bounds 39 %, not 10 %


def test_0_of_40_agree_where_40_of_40_cold_ones_do() -> None:
    verdict = judged(simulated(Server("threads", Corruption("salad", 1.0)), prompts=40, hits=1))
    suspect, floor = cell(verdict, TAIL_1.name), cell(verdict, "L=193 cold")
    assert floor.agreement == {"same": 40}
    assert suspect.agreement == {"off-list": 40}
    assert suspect.reason == "40 corrupt prompts of 40: at least 92.8% at 95%"
    assert verdict.state == FAIL


def test_the_fixed_server_passes_though_its_hits_are_over_a_fixed_limit() -> None:
    """Hit KL 4.6e-3, above the 2e-3 that one gate allows: its tail-2 control is in the same range."""
    records = simulated(Server("threads"), prompts=30)
    suspect, control, floor = (
        kl_to_cold(records, name, role)
        for name, role in ((TAIL_1.name, "hit"), (TAIL_2.name, "hit"), (TAIL_1.name, "cold2"))
    )
    assert 3e-3 < suspect < 7e-3
    assert 3e-3 < control < 7e-3
    assert 3e-4 < floor < 1e-3
    verdict = judged(records)
    assert verdict.state == PASS, verdict.reason
    assert verdict.bound == "0 corrupt prompts of 30: at most 10 % at 95 %"


def test_8_of_8_re_sends_nan() -> None:
    verdict = judged(simulated(Server("threads", Corruption("nan", 1.0)), prompts=8, hits=1))
    suspect = cell(verdict, TAIL_1.name)
    assert verdict.state == FAIL
    assert suspect.reason == "8 corrupt prompts of 8: NaN in 8 sends"
    assert suspect.rules == {"NaN": 8}
    assert suspect.agreement == {"broken": 8}
    assert suspect.faces == {"null": 8 * 21}
    assert suspect.values == 8 * 21
    assert suspect.examples[0].why == "NaN: 21 null"


def test_2032_of_2048_tokens_nan() -> None:
    """One long answer whose first 16 tokens are right: each NaN is counted, none is averaged away."""
    records = simulated(Server("threads"), prompts=30)
    hit = next(one for one in records if one.role == "hit" and one.cell == TAIL_1.name)
    right, row = hit.answer.output_ids[0], hit.answer.top[0]
    hit.answer.output_ids = [right] + list(range(100, 115)) + [0] * 2032
    hit.answer.logprobs = [row[0][1]] * 16 + [math.nan] * 2032
    hit.answer.faces = {"null": 2032}
    hit.answer.values = 2048
    verdict = judged(records)
    suspect = cell(verdict, TAIL_1.name)
    assert verdict.state == FAIL
    assert suspect.reason == "1 corrupt prompts of 30: NaN in 1 sends, run of one id in 1 sends"
    assert suspect.faces == {"null": 2032}
    assert suspect.values == 59 * 21 + 2048
    assert suspect.examples[0].why == "NaN: 2032 null"


@pytest.mark.parametrize(
    ("cached", "reason"),
    [
        (128, "cached_tokens 128 instead of 192 (60 sends)"),
        (0, "no hit: cached_tokens 0 instead of 192 (60 sends)"),
        (None, "the server reports no cached_tokens (60 sends)"),
    ],
)
def test_hits_with_another_count_of_cached_tokens_are_no_evidence(cached: int | None, reason: str) -> None:
    records = simulated(Server("threads"), prompts=30)
    for one in records:
        if one.role == "hit" and one.cell == TAIL_1.name:
            one.answer.cached_tokens = cached
    verdict = judged(records)
    assert cell(verdict, TAIL_1.name).state == NOT_EXERCISED
    assert cell(verdict, TAIL_1.name).reason == reason
    assert verdict.state == INCONCLUSIVE


Change = Callable[[Observation], None]


def _unsorted(one: Observation) -> None:
    one.answer.top[0].reverse()


def _duplicate(one: Observation) -> None:
    one.answer.top[0][1] = one.answer.top[0][0]


def _above_zero(one: Observation) -> None:
    one.answer.top[0][0] = (one.answer.top[0][0][0], 0.5)


def _empty(one: Observation) -> None:
    one.answer.top = [[]]


def _all_null(one: Observation) -> None:
    one.answer.top = [[(token, math.nan) for token, _ in one.answer.top[0]]]
    one.answer.faces = {"null": 20}


def _no_tokens(one: Observation) -> None:
    one.answer.output_ids, one.answer.logprobs = [], []


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        (_unsorted, PASS, "0 corrupt prompts of 30"),
        (_duplicate, FAIL, "probabilities above 1"),
        (_above_zero, FAIL, "probabilities above 1"),
        (_empty, INCONCLUSIVE, "no readable answer to compare"),
        (_all_null, FAIL, "NaN in 60 sends"),
        (_no_tokens, INCONCLUSIVE, "no readable answer to compare"),
    ],
)
def test_bad_answers_have_a_defined_outcome(change: Change, state: str, said: str) -> None:
    records = simulated(Server("threads"), prompts=30)
    for one in records:
        if one.role == "hit" and one.cell == TAIL_1.name:
            change(one)
    verdict = judged(records)
    assert verdict.state == state, verdict.reason
    assert said in cell(verdict, TAIL_1.name).reason
    out_of_order = "60 answers list their top logprobs out of order: they were sorted here"
    assert (out_of_order in verdict.arms[0].warnings) is (change is _unsorted)
