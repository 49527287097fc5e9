"""Generated tokens held against a clean prefill of the same ids."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.observations import Answer, Observation
from fidelity.scoring import HARD, SURE, corrupt_rules, score

NAN = math.nan


def send(role: str, temperature: float = 0.0, **given: Any) -> Observation:
    answer = Answer(**{"status": 200, "latency": 0.1, **given})
    own = {"order": 0, "arm": "a", "probe": "decode", "role": role, "namespace": "n", "length": 9}
    return Observation(**own, sent_at=0.0, answer=answer, temperature=temperature)


def generated(logprobs: list[float], ids: list[int] | None = None, **given: Any) -> Observation:
    ids = ids or list(range(len(logprobs)))
    top = [[(token, value)] for token, value in zip(ids, logprobs, strict=True)]
    faces = {"nan": count} if (count := sum(map(math.isnan, logprobs))) else {}
    return send("decode", output_ids=ids, logprobs=logprobs, top=top, faces=faces, **given)


def clean(logprobs: list[float], best: list[float] | None = None) -> Observation:
    best = best or logprobs
    return send("rescore", scored=logprobs, scored_top=[[(0, value)] for value in best])


def test_delta_and_regret() -> None:
    found = score(generated([-0.1, -0.2]).answer, clean([-0.3, -2.0], [-0.3, -0.5]).answer)
    assert found is not None
    assert found.delta == pytest.approx([-0.2, -1.8])
    assert found.regret == pytest.approx([0.0, 1.5])
    assert found.first_bad() == 1


@pytest.mark.parametrize(
    ("own", "again"),
    [
        (generated([]), clean([])),
        (generated([-0.1, -0.2]), clean([-0.1])),
        (generated([-0.1]), clean([])),
        (send("decode", output_ids=[1, 2], logprobs=[-0.1]), clean([-0.1, -0.1])),
    ],
    ids=["no tokens", "fewer scored", "none scored", "fewer logprobs"],
)
def test_nothing_to_hold_together(own: Observation, again: Observation) -> None:
    assert score(own.answer, again.answer) is None


@given(st.lists(st.floats(-20, -1e-6), min_size=1, max_size=40))
def test_equal_logprobs_are_clean_and_no_token_is_lost(logprobs: list[float]) -> None:
    found = score(generated(logprobs).answer, clean(logprobs).answer)
    assert found is not None
    assert len(found.delta) == len(logprobs)
    assert not found.delta.any()
    assert not found.regret.any()
    assert found.first_bad() is None
    assert corrupt_rules(generated(logprobs), clean(logprobs)) == ()


def test_a_nan_is_told_with_its_place_and_never_skipped() -> None:
    own = generated([-0.1, NAN, -0.2])
    found = score(own.answer, clean([-0.1, -0.1, -0.2]).answer)
    assert found is not None
    assert found.undefined.tolist() == [False, True, False]
    assert np.isnan(found.delta).tolist() == [False, True, False]
    assert found.first_bad() == 1
    assert corrupt_rules(own, clean([-0.1, -0.1, -0.2]))[0] == "NaN: 1 nan"
    assert corrupt_rules(own, None)[0] == "NaN: 1 nan"


def test_a_clamped_logprob_counts_as_undefined() -> None:
    found = score(generated([-0.1, -9999.0]).answer, clean([-0.1, -0.1]).answer)
    assert found is not None
    assert found.undefined.tolist() == [False, True]


def test_a_clean_prefill_that_is_no_number_is_corruption_too() -> None:
    again = send("rescore", scored=[NAN, -0.1], scored_top=[[(0, NAN)], [(0, -0.1)]], faces={"null": 2})
    assert corrupt_rules(generated([-0.1, -0.1]), again) == ("the clean prefill is not a number",)


@pytest.mark.parametrize(
    ("regrets", "corrupt"),
    [
        ([0.0] * 50, False),
        ([HARD] * 50, False),
        ([HARD + 0.01] + [0.0] * 49, False),
        ([HARD + 0.01] * 2 + [0.0] * 48, True),
        ([HARD + 0.01] * 2 + [0.0] * 298, False),
        ([HARD + 0.01] * 3 + [0.0] * 297, True),
        ([SURE] + [0.0] * 49, False),
        ([SURE + 0.01] + [0.0] * 299, True),
    ],
)
def test_regret_makes_an_answer_corrupt(regrets: list[float], corrupt: bool) -> None:
    again = clean([-0.2 - regret for regret in regrets], [-0.2] * len(regrets))
    rules = corrupt_rules(generated([-0.2] * len(regrets)), again)
    assert bool(rules) is corrupt
    assert all("are not the clean prefill's" in rule for rule in rules)


@pytest.mark.parametrize(
    ("noise", "regret", "corrupt"),
    [
        (0.0, SURE + 0.01, True),
        (0.4, SURE + 0.79, False),
        (0.4, SURE + 0.81, True),
        (9.0, SURE + 2 * HARD - 0.01, False),
        (9.0, SURE + 2 * HARD + 0.01, True),
        (NAN, SURE + 0.01, True),
    ],
)
def test_what_two_clean_prefills_differ_in_is_allowed(noise: float, regret: float, corrupt: bool) -> None:
    one = clean([-0.2 - regret, *[-0.2] * 49], [-0.2] * 50)
    other = clean([-0.2 - regret, *[-0.2] * 48, -0.2 - noise], [-0.2] * 50)
    assert bool(corrupt_rules(generated([-0.2] * 50), one, other)) is corrupt
    assert corrupt_rules(generated([-0.2] * 50), one) or regret <= SURE


def test_at_temperature_1_regret_is_no_fault() -> None:
    own = generated([-0.2] * 20)
    own.temperature = 1.0
    assert corrupt_rules(own, clean([-6.0] * 20, [-0.1] * 20)) == ()


def test_a_run_of_one_id_counts_only_against_the_clean_prefill() -> None:
    own = generated([-0.1] * 12, [7] * 12)
    assert corrupt_rules(own, clean([-0.1] * 12)) == ()
    assert any(
        rule.startswith("run of one id") for rule in corrupt_rules(own, clean([-9.0] * 12, [-0.1] * 12))
    )
    assert corrupt_rules(own, None) == ("run of one id (12)",)
