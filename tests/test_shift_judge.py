"""A shift that flips no token: what moved in suspects alone fails, what moved in controls too does not."""

from collections.abc import Callable
from typing import Any

import pytest

from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS

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
