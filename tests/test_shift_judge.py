"""A shift that flips no token: what moved in suspects alone fails, what moved in controls too does not."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fidelity.compare import top_probability
from fidelity.judge import judge
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation
from fidelity.plan import RunPlan, Thresholds
from fidelity.probes.cells import Cell
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS, CellVerdict, Figure, RunVerdict

from .calibration.simulate import Corruption, Server, cells, observe

Play = Callable[..., Any]


def test_logprobs_that_move_under_an_unmoved_answer_fail(fake_sglang: Any, play: Play) -> None:
    played = play(fake_sglang(fault="moved"), {"prompts": {"count": 12}, "target": {"assume_idle": True}})
    cell = played.cells()["L=193 tail=1"]
    assert cell.agreement == {"same": 24}
    assert cell.corrupt == 0
    assert cell.divergences.jsd_lower.maximum < 1e-3
    assert cell.state == FAIL
    assert cell.reason.startswith("the logprobs moved: mean |delta logprob| 0.")
    assert played.verdict.exit_code == 10
    assert played.cells()["L=225 tail=33"].state == PASS


def test_too_few_prompts_to_prove_a_move_never_pass(fake_sglang: Any, play: Play) -> None:
    played = play(fake_sglang(fault="moved"), {"prompts": {"count": 6}, "target": {"assume_idle": True}})
    cell = played.cells()["L=193 tail=1"]
    assert cell.state == INCONCLUSIVE
    assert "mean |delta logprob| is not shown to stay within" in cell.reason


def test_a_move_that_controls_share_is_no_fault_of_the_suspects(fake_sglang: Any, play: Play) -> None:
    fake = fake_sglang(fault="moved", affects=lambda computed, _: computed in (1, 33))
    played = play(fake, {"prompts": {"count": 12}, "target": {"assume_idle": True}})
    assert played.cells()["L=193 tail=1"].state == PASS


@pytest.mark.parametrize("name", ["mean JSD", "mean |delta logprob|"])
def test_each_size_stands_with_its_threshold_and_source(fake_sglang: Any, play: Play, name: str) -> None:
    played = play(fake_sglang(), {"target": {"assume_idle": True}})
    figures = played.cells()["L=193 tail=1"].figures
    (limit,) = (figure for figure in figures if figure.name.startswith(f"{name} above"))
    assert limit.holds
    assert limit.threshold == {"mean JSD": 1e-3, "mean |delta logprob|": 0.125}[name]
    assert "of thresholds" in limit.source


def conditions(*tails: int, suspects: int = 1) -> list[Cell]:
    return cells(tails, suspects)


def judged(records: Sequence[Observation], plan: Sequence[Cell], **limits: float) -> RunVerdict:
    plan_of_run = RunPlan(probes=("resend",), thresholds=Thresholds(**limits))
    manifest = Manifest("r", "s", plan_of_run, status="complete")
    manifest.arms["none"] = ArmRecord("none", 1, cells=list(plan))
    return judge(manifest, records)


def simulated(
    plan: Sequence[Cell], *biases: float, prompts: int = 30, noise: str = "threads"
) -> list[Observation]:
    """A run whose hits have the given nats taken off their leading logit, cell by cell."""
    records: list[Observation] = []
    for number, (cell, nats) in enumerate(zip(plan, biases, strict=True)):
        server = Server(noise, Corruption("bias", 1.0, nats) if nats else None)
        records += observe(server, prompts, 2, [cell], np.random.default_rng(number))
    return records


def figure(cell: CellVerdict, name: str) -> Figure:
    return next(one for one in cell.figures if one.name.startswith(name))


def test_a_bias_of_the_suspects_alone_fails() -> None:
    plan = conditions(1, 2, 33)
    verdict = judged(simulated(plan, 1.0, 0.0, 0.0), plan)
    suspect, *others = verdict.arms[0].cells
    assert suspect.corrupt == 0
    assert suspect.state == FAIL
    assert suspect.reason.startswith("the logprobs moved: mean JSD 0.0")
    assert {cell.state for cell in others} == {PASS}
    chance = figure(suspect, "p that the mean JSD exceeds that of L=194 tail=2")
    assert not chance.holds
    assert chance.value < chance.threshold == 0.001


def test_a_shift_within_the_margin_passes_however_sure_it_is() -> None:
    """Significant and small is no fault: without noise any bias has p = 2^-30."""
    plan = conditions(1, 2, 33)
    verdict = judged(simulated(plan, 0.1, 0.0, 0.0, noise="zero"), plan)
    suspect = verdict.arms[0].cells[0]
    assert figure(suspect, "p that the mean JSD").value < 1e-8
    assert 0 < figure(suspect, "mean JSD above").value < 1e-3
    assert verdict.state == PASS
    strict = judged(simulated(plan, 0.1, 0.0, 0.0, noise="zero"), plan, least_margin=1e-6)
    assert strict.arms[0].cells[0].state == FAIL


def test_nothing_moved_at_all_is_exactly_nothing() -> None:
    plan = conditions(1, 2, 33)
    verdict = judged(simulated(plan, 0.0, 0.0, 0.0, noise="zero"), plan)
    assert verdict.state == PASS
    suspect = verdict.arms[0].cells[0]
    assert figure(suspect, "p that the mean JSD").value == 1.0
    assert figure(suspect, "mean JSD above").value == 0.0


def test_too_wide_a_limit_says_how_many_more_prompts() -> None:
    plan = conditions(1, 2, 33)
    verdict = judged(simulated(plan, 0.0, 0.0, 0.0), plan, kappa=0.01, least_margin=1e-6)
    suspect = verdict.arms[0].cells[0]
    assert suspect.state == INCONCLUSIVE
    assert suspect.reason.startswith("the mean JSD is not shown to stay within")
    assert suspect.reason.endswith("more prompts would decide")


def test_a_shift_that_controls_share_is_elevation() -> None:
    """It cancels in the difference: nothing fails, and nothing passes."""
    plan = conditions(1, 2, 33)
    verdict = judged(simulated(plan, 1.5, 1.5, 1.5), plan)
    suspect, near, far, *floors = verdict.arms[0].cells
    assert suspect.state == PASS, suspect.reason
    for control in (near, far):
        assert control.state == INCONCLUSIVE
        assert control.reason.startswith("elevated hits: control hits are 0.0")
        assert not figure(control, "median JSD of control hits").holds
    assert verdict.state == INCONCLUSIVE
    assert {cell.state for cell in floors} == {PASS}
    assert judged(simulated(plan, 1.5, 1.5, 1.5), plan, elevated=0.5).state == INCONCLUSIVE  # by its move
    assert judged(simulated(plan, 1.5, 1.5, 1.5), plan, elevated=0.5, elevated_move=5).state == PASS


def test_each_suspect_is_held_against_the_nearest_control_at_its_position() -> None:
    plan = [*conditions(1, 33, 2), Cell("L=257 tail=1", "suspect", 257, 1, "another position")]
    verdict = judged(simulated(plan, 0.0, 0.0, 0.0, 0.0), plan)
    suspect, alone = (cell for cell in verdict.arms[0].cells if cell.kind == "suspect")
    assert figure(suspect, "mean JSD above L=194 tail=2").holds
    assert alone.state == INCONCLUSIVE
    assert alone.reason == "no control cell at this position to hold the hits against"


def test_more_tests_need_more_evidence() -> None:
    """Holm: with four suspects, each of two sizes, the smallest p counts eightfold."""
    one, four = conditions(1, 2), conditions(1, 3, 4, 5, 2, suspects=4)
    alone = figure(judged(simulated(one, 0.4, 0.0), one).arms[0].cells[0], "p that the mean JSD")
    records = simulated(one, 0.4, 0.0)
    for number, cell in enumerate(four[1:4], start=1):
        records += observe(Server("threads"), 30, 2, [cell], np.random.default_rng(100 + number))
    among = figure(judged(records, four).arms[0].cells[0], "p that the mean JSD")
    assert alone.value < among.value <= 8 * alone.value


@pytest.mark.parametrize(("kept", "state"), [(20, PASS), (1, INCONCLUSIVE)])
def test_a_server_that_tells_too_little_cannot_pass(kept: int, state: str) -> None:
    plan = conditions(1, 2, 33)
    records = simulated(plan, 0.0, 0.0, 0.0, noise="quantised")
    for one in records if kept == 1 else ():
        # One id of 0.9 leaves 0.1 of each distribution untold.
        one.answer.top, one.answer.logprobs, one.answer.asked = [[(0, -0.105)]], [-0.105], []
        one.answer.output_ids = [0]
    verdict = judged(records, plan)
    assert verdict.state == state, verdict.reason
    if state == INCONCLUSIVE:
        suspect = verdict.arms[0].cells[0]
        assert suspect.reason.startswith("the top-k answers leave 0.069 nat of the JSD open (allowed: 0.05)")
        assert not figure(suspect, "median width of the JSD interval").holds


@pytest.mark.parametrize(
    ("wrong", "tails", "state"),
    [
        (30, (1, 2, 33), FAIL),
        (7, (1, 2, 33), FAIL),  # at least 11 % of 30
        (6, (1, 2, 33), INCONCLUSIVE),  # 20 %, at least 9 %
        (4, (1, 2, 33), INCONCLUSIVE),
        (3, (1, 2, 33), PASS),  # 10 %: a near-tie can fall either way
        (30, (1, 2), FAIL),
    ],
)
def test_cold_answers_that_share_the_fault_are_told_by_their_neighbours(
    wrong: int, tails: tuple[int, ...], state: str
) -> None:
    plan = conditions(*tails)
    records = simulated(plan, *[0.0] * len(plan), noise="zero")
    for one in records:
        if one.cell == plan[0].name and int(one.prompt.rpartition("/")[2]) < wrong:
            one.answer.text = "wrong"
    verdict = judged(records, plan)
    suspect = verdict.arms[0].cells[0]
    assert verdict.state == suspect.state == state, suspect.reason
    assert suspect.corrupt == 0
    if state == FAIL:
        assert suspect.reason == (
            f"{wrong} of 30 known answers are wrong even cold at 193 tokens and right at "
            f"{len(tails) - 1} other lengths: cold and hit share the fault"
        )


def test_what_a_model_only_guesses_at_other_lengths_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = conditions(1, 2, 33)
    records = simulated(plan, 0.0, 0.0, 0.0, noise="zero")
    for one in records:
        if one.cell == plan[0].name:
            one.answer.text = "wrong"
    assert judged(records, plan).state == FAIL
    sure = max(top_probability(one.answer) for one in records if one.role == "cold")
    monkeypatch.setattr("fidelity.shift_judge.CERTAIN", sure + 1e-9)
    assert judged(records, plan).state == PASS


def test_a_question_that_is_wrong_at_every_length_proves_nothing() -> None:
    plan = conditions(1, 2, 33)
    records = simulated(plan, 0.0, 0.0, 0.0, noise="zero")
    for one in records:
        one.answer.text = "wrong"
    assert judged(records, plan).state == PASS


def test_two_looks_halve_what_each_may_spend() -> None:
    once = Thresholds()
    twice = Thresholds(looks=2)
    assert once.each_look is once
    assert twice.each_look.alpha == pytest.approx(once.alpha / 2)
    assert twice.each_look.confidence == pytest.approx(0.975)
    plan = conditions(1, 2, 33)
    records = simulated(plan, 0.0, 0.0, 0.0)
    verdict = judged(records, plan, looks=2)
    assert verdict.state == INCONCLUSIVE  # 0 of 30 is at most 11.6 % at 97.5 %
    assert "at 97.5%" in verdict.reason
    assert figure(verdict.arms[0].cells[0], "p that the mean JSD").threshold == 0.0005
    assert judged(simulated(plan, 0.0, 0.0, 0.0, prompts=36), plan, looks=2).state == PASS


def with_flips(records: Sequence[Observation], cell: Cell, prompts: int, regret: float) -> None:
    """Make the hits of some prompts answer the cold answer's second id, `regret` nats below its first."""
    chosen = {f"simulated/{number}" for number in range(prompts)}
    for one in records:
        if one.cell == cell.name and one.prompt in chosen:
            (first, top), (second, _), *others = one.answer.top[0]
            one.answer.top = [[(first, top), (second, top - regret), *others]]
            one.answer.asked = []
            if one.role == "hit":
                one.answer.top = [[(second, top), (first, top - regret), *others]]
                one.answer.output_ids = [second]


def flat_start(records: Sequence[Observation]) -> None:
    """Answers without a clear first token, so that a flip moves little."""
    for one in records:
        one.answer.top = [[(token, -1.5 - 0.5 * rank) for rank, (token, _) in enumerate(one.answer.top[0])]]
        one.answer.logprobs, one.answer.asked = [-1.5], []


def test_flips_that_controls_show_too_are_near_ties() -> None:
    plan = conditions(1, 2, 33)
    records = simulated(plan, 0.0, 0.0, 0.0, noise="zero")
    flat_start(records)
    for cell in plan:
        with_flips(records, cell, prompts=2, regret=0.3)
    suspect = judged(records, plan, elevated=1.0, slack=1.0).arms[0].cells[0]
    assert suspect.agreement == {"near-tie": 4, "same": 56}
    assert suspect.corrupt == 0
    tie = figure(suspect, "largest regret of a flipped first token")
    assert (tie.value, tie.threshold) == pytest.approx((0.3, 0.3))
    assert tie.source.startswith("p99 of 210 cold and control pairs")


def test_flips_of_suspects_alone_excuse_nobody() -> None:
    plan = conditions(1, 2, 33)
    records = simulated(plan, 0.0, 0.0, 0.0, noise="zero")
    flat_start(records)
    with_flips(records, plan[0], prompts=10, regret=0.3)
    suspect = judged(records, plan, elevated=1.0, slack=1.0).arms[0].cells[0]
    assert suspect.agreement == {"hard flip": 20, "same": 40}
    assert suspect.state == FAIL
    assert not figure(suspect, "largest regret of a flipped first token").holds
