"""Which replica is the odd one, and what that decides, on hand-made cold answers."""

import math
from collections.abc import Sequence

import pytest

from fidelity.judging.replicas import compare
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation
from fidelity.plan import build
from fidelity.verdicts import Comparison

PROMPTS = 5
URLS = ("http://a:1", "http://b:1", "http://c:1", "http://d:1")


def answer(token: int, sure: float) -> Answer:
    rest = [(token + 1, math.log((1 - sure) * 0.9)), (token + 2, math.log((1 - sure) * 0.09))]
    return Answer(
        status=200,
        latency=0.1,
        output_ids=[token],
        prompt_tokens=100,
        cached_tokens=0,
        logprobs=[math.log(sure)],
        top=[[(token, math.log(sure)), *rest]],
        values=4,
    )


def replica(arm: str, flipped: int = 0, sure: float = 0.97, again: float | None = None) -> list[Observation]:
    """Cold and cold again; the first `flipped` prompts have another first token."""
    found = []
    for number in range(PROMPTS):
        token = 7 + (100 if number < flipped else 0)
        for role, own in (("cold", sure), ("cold2", again or sure)):
            found.append(
                Observation(
                    order=len(found),
                    arm=arm,
                    probe="resend",
                    role=role,
                    namespace="n",
                    length=100,
                    sent_at=0.0,
                    answer=answer(token, own),
                    prompt=f"p{number}",
                    group=f"p{number}@100",
                    input_ids=[number] * 100 if role == "cold" else [],
                )
            )
    return found


def compared(*replicas: Sequence[Observation], models: Sequence[str] = ("m",) * 4) -> Comparison:
    arms = [{"name": "abcd"[n], "url": URLS[n]} for n in range(len(replicas))]
    plan = build({"target": {"kind": "attach", "url": URLS[0]}, "arms": arms})
    records = {arm.name: ArmRecord("none", 1, facts={"model": models[n]}) for n, arm in enumerate(plan.arms)}
    by_arm = {arm.name: own for arm, own in zip(plan.arms, replicas, strict=True)}
    (found,) = compare(plan, records, by_arm, plan.thresholds)
    return found


def test_alike() -> None:
    found = compared(replica("a"), replica("b"), replica("c", sure=0.971))
    assert (found.state, len(found.rows)) == ("pass", 3)


@pytest.mark.parametrize(("flipped", "state"), [(1, "inconclusive"), (2, "fail"), (PROMPTS, "fail")])
def test_the_odd_one_of_three_is_named(flipped: int, state: str) -> None:
    found = compared(replica("a"), replica("b", flipped), replica("c"))
    assert found.state == state
    assert found.reason.startswith("b is the odd one out of 3: ")
    assert f"{flipped} of {PROMPTS} prompts (p0)" in found.reason


def test_two_that_differ_name_nobody() -> None:
    found = compared(replica("a"), replica("b", PROMPTS))
    assert found.state == "inconclusive"
    assert "no majority" in found.reason


def test_two_against_two_name_nobody() -> None:
    found = compared(*(replica(name, PROMPTS * (name in "cd")) for name in "abcd"))
    assert (found.state, "no majority" in found.reason) == ("inconclusive", True)


def test_what_the_model_is_not_sure_of_is_no_flip() -> None:
    unsure = [replica(name, PROMPTS * (name == "b"), sure=0.5) for name in "abc"]
    # The distributions are others all the same.
    found = compared(*unsure)
    assert (found.state, "JSD" in found.reason) == ("inconclusive", True)


def test_distributions_that_moved_without_a_flip_leave_it_open() -> None:
    found = compared(replica("a"), replica("b", sure=0.6), replica("c"))
    assert (found.state, found.reason.startswith("b is the odd one")) == ("inconclusive", True)


def test_noise_of_their_own_is_allowed() -> None:
    noisy = [replica(name, sure=sure, again=0.8) for name, sure in (("a", 0.97), ("b", 0.93), ("c", 0.97))]
    assert compared(*noisy).state == "pass"


def test_other_tokens_are_not_compared() -> None:
    other = replica("b")
    for record in other:
        record.input_ids = record.input_ids and [9, *record.input_ids]
    assert compared(replica("a"), other).state == "inconclusive"
    third = compared(replica("a"), other, replica("c"))
    assert (third.state, "were not sent the same tokens" in third.reason) == ("inconclusive", True)


def test_prompts_whose_tokens_are_not_known_are_no_comparison() -> None:
    a, b, c = (replica(name, PROMPTS * (name == "b")) for name in "abc")
    for record in (*a, *b):
        record.input_ids = []
    for both in (compared(a, b), compared(a, c)):
        assert both.state == "inconclusive"
        assert "salted per address" in both.reason
    assert compared(a, b).arms == ("a", "b")


def test_other_models_are_no_replicas() -> None:
    found = compared(replica("a"), replica("b"), models=("m", "other"))
    assert (found.state, "b serves other" in found.reason) == ("inconclusive", True)


def test_one_that_answered_has_nobody_to_be_held_against() -> None:
    plan = build(
        {
            "target": {"kind": "attach", "url": URLS[0]},
            "arms": [{"name": "a", "url": URLS[0]}, {"name": "b", "url": URLS[1]}],
        }
    )
    records = {name: ArmRecord("none", 1) for name in "ab"}
    assert compare(plan, records, {"a": replica("a"), "b": []}, plan.thresholds) == []
