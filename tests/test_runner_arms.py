"""Several arms and guards, each a server of its own that must be what was asked."""

from typing import Any

import pytest

from fidelity.verdicts import FAIL, NOT_EXERCISED, PASS

SUSPECT = "L=193 tail=1"


EMBEDDED = {"target": {"kind": "embedded", "url": None, "fault": "split-k-nan"}}
SAYS = {
    "engine": "fidelity-embedded",
    "fault": "split-k-nan",
    "cu": 16,
    "moe_shape": {"hidden": 128, "intermediate": 64, "topk": 2, "experts": 8, "tile": 16},
}


def guarded(*names: str, baseline: str = "") -> dict[str, Any]:
    arms = [{"name": name, "guard": name, "baseline": name == baseline} for name in names]
    return {**EMBEDDED, "arms": arms, "resend": {"controls": [2, 33]}}


def test_two_arms_before_and_after(play: Any, fake_sglang: Any) -> None:
    def fakes() -> dict[str, Any]:
        words = ["!"]
        guarded_one = fake_sglang(info={**SAYS, "guard": ["splitk"]}, words=words)
        return {"none": fake_sglang(fault="nan", info=SAYS, words=words), "splitk": guarded_one}

    played = play(fakes(), guarded("none", "splitk"))
    assert played.verdict.exit_code == 10
    assert [arm.state for arm in played.verdict.arms] == [FAIL, PASS]
    before, after = (played.cells(n)[SUSPECT] for n in (0, 1))
    assert before.cached == after.cached == {"192": 12}
    assert before.tails == after.tails == {"1": 12}
    prompts = [record.prompts for record in played.manifest.arms.values()]
    assert prompts[0] == prompts[1]
    assert played.verdict.label.startswith("SIMULATED")
    baseline = play(fakes(), guarded("none", "splitk", baseline="none"), name="b")
    assert baseline.verdict.exit_code == 0


def test_fail_fast_does_not_stop_in_a_baseline_arm(play: Any, fake_sglang: Any) -> None:
    words = ["!"]
    fakes = {
        "none": fake_sglang(fault="nan", info=SAYS, words=words),
        "splitk": fake_sglang(fault="nan", info={**SAYS, "guard": ["splitk"]}, words=words),
    }
    played = play(fakes, {**guarded("none", "splitk", baseline="none"), "fail_fast": True})
    assert (played.verdict.exit_code, played.manifest.status) == (10, "stopped at the first proof")
    assert [one.role for one in played.records if one.arm == "splitk" and one.probe == "resend"] == [
        "cold",
        "cold2",
        "hit",
    ]


def test_retreat_is_a_structural_gate(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(fault="nan", min_tail=2, info={**SAYS, "guard": ["retreat"]})
    played = play(fake, guarded("retreat"))
    found = played.cells()
    assert found[SUSPECT].reason == (
        "one-token path removed: tails 65, 193; 0 corrupt prompts of 6: at most 39.4 % at 95%"
    )
    assert found["L=194 tail=2"].cached == {"192": 12}
    assert played.verdict.exit_code == 0


def test_at_65_tokens_a_retreat_computes_afresh(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(fault="nan", min_tail=2, info={**SAYS, "guard": ["retreat"]})
    played = play(fake, {**guarded("retreat"), "resend": {"lengths": [65, 66, 97]}})
    found = played.cells()
    assert found["L=65 tail=1"].reason.startswith("one-token path removed: tails 65; 0 corrupt prompts of 6")
    assert found["L=66 tail=2"].cached == {"64": 12}
    assert played.verdict.exit_code == 0


def test_a_retreat_proves_nothing_where_nothing_hits(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(min_tail=2, caching=False, info={**SAYS, "guard": ["retreat"]})
    played = play(fake, guarded("retreat"))
    assert played.verdict.exit_code == 11
    assert played.cells()[SUSPECT].state == NOT_EXERCISED


def test_a_retreat_that_does_not_retreat_fails(play: Any, fake_sglang: Any) -> None:
    played = play(fake_sglang(info={**SAYS, "guard": ["retreat"]}), guarded("retreat"))
    assert played.verdict.exit_code == 10
    assert (
        played.cells()[SUSPECT].reason == "the guard leaves no tail under 2, yet 12 re-sends recomputed less"
    )


@pytest.mark.parametrize(
    "says", [{"guard": []}, {"guard": ["unsplit"]}, {"guard": ["splitk"], "fault": "none"}]
)
def test_an_arm_that_is_not_what_was_asked_is_exit_3(
    says: dict[str, Any], play: Any, fake_sglang: Any
) -> None:
    fake = fake_sglang(info={**SAYS, **says})
    played = play(fake, guarded("splitk"))
    assert played.verdict.exit_code == 3
    assert fake.bodies == []
