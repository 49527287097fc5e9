"""Bit-identity of cold, hit and decode on records made by hand: the first difference is found and named."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging import exact
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation, from_json, to_json
from fidelity.verdicts import FAIL, NOT_EXERCISED, PASS, CellVerdict

LEAST = math.ulp(-0.1)
ROWS = [[(5, -0.1), (6, -3.0)], [(7, -0.2), (8, -2.0)]]
TWO = {"output_ids": [5, 7], "logprobs": [-0.1, -0.2], "top": ROWS}
SCORED = [-0.1, -0.2, -0.3]

Send = Callable[..., Observation]


@pytest.fixture
def send(observation: Send) -> Send:
    def make(role: str, group: str = "a/b@193", **given: Any) -> Observation:
        own = {"role": role, "group": group, "prompt": "a/b", "cached_tokens": 192 if role == "hit" else 0}
        return observation(**{**own, **TWO, **given})

    return make


@pytest.fixture
def decoded(observation: Send) -> Callable[..., list[Observation]]:
    """A prompt of 20 tokens, three more decoded, and two clean prefills of all 23."""

    def make(own: Sequence[float] = SCORED, *scored: Sequence[float], **given: Any) -> list[Observation]:
        common = {"probe": "decode", "group": "a/b@T=0", "prompt": "a/b", "cell": "T=0", "cached_tokens": 0}
        answer = {"role": "decode", "length": 20, "output_ids": [1, 2, 3], "logprobs": list(own), **given}
        clean = [
            observation(
                **common,
                role=role,
                length=23,
                prompt_tokens=23,
                output_ids=[],
                logprobs=[],
                scored=list(values),
            )
            for role, values in zip(("rescore", "rescore2"), scored, strict=False)
        ]
        return [observation(**{**common, **answer}), *clean]

    return make


def judge(
    observations: Sequence[Observation],
    probes: Sequence[str] = ("resend", "decode"),
    skipped: dict[str, str] | None = None,
) -> dict[str, CellVerdict]:
    plan = plans.build({"probes": list(probes), "exact": True})
    record = ArmRecord("none", 1, skipped=skipped or {})
    kept = [from_json(to_json(obs)) for obs in observations]  # as they come from disk
    found = exact.judge(plan, plan.arms[0], record, kept, plan.thresholds)
    assert all(cell.probe == "exact" for cell in found)
    return {cell.name: cell for cell in found}


def test_identical_answers_pass_with_their_number(send: Send, decoded: Any) -> None:
    records = [send("cold"), send("cold2"), send("hit"), send("hit"), *decoded(SCORED, SCORED, SCORED)]
    found = judge(records)
    assert {name: (cell.state, cell.exercised, cell.corrupt) for name, cell in found.items()} == {
        "cold again": (PASS, 1, 0),
        "hits": (PASS, 2, 0),
        "decode": (PASS, 2, 0),
    }
    assert found["hits"].reason == "2 answers compared, all bit-identical"


def test_the_least_difference_of_a_logprob_fails_and_is_named(send: Send) -> None:
    moved = [ROWS[0], [(7, -0.2), (8, -2.0 + math.ulp(2.0))]]
    found = judge([send("cold"), send("cold2"), send("hit"), send("hit", top=moved)])
    assert found["cold again"].state == PASS
    hits = found["hits"]
    assert hits.state == FAIL
    assert (hits.corrupt, hits.exercised) == (1, 2)
    assert hits.notes == (
        "a/b, token 194, logprob of id 8: -2.0 cold, -1.9999999999999996 hit, difference 4.44e-16 nat",
    )
    assert hits.reason == f"1 of 2 answers are not bit-identical: first {hits.notes[0]}"
    assert json.loads(json.dumps(-2.0 + math.ulp(2.0))) == -1.9999999999999996


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_ids": [5, 8]}, "token 194, id: 7 cold, 8 hit"),
        ({"output_ids": [5]}, "token 194, id: 7 cold, nothing hit"),
        ({"logprobs": [-0.1 - LEAST, -0.2]}, "token 193, logprob of id 5: -0.1 cold, "),
        ({"logprobs": [-0.1]}, "token 194, logprob of id 7: -0.2 cold, nothing hit"),
        ({"top": [ROWS[0][::-1], ROWS[1]]}, "token 193, id 1 of the top row: 5 cold, 6 hit"),
        ({"top": [ROWS[0][:1], ROWS[1]]}, "token 193, id 2 of the top row: 6 cold, nothing hit"),
        ({"top": ROWS[:1]}, "token 194, id 1 of the top row: 7 cold, nothing hit"),
        ({"error": "HTTP 500", "faces": {"http nan": 1}, "output_ids": [], "top": []}, "token 193, id 1"),
    ],
)
def test_every_part_of_an_answer_counts(send: Send, change: dict[str, Any], words: str) -> None:
    hits = judge([send("cold"), send("hit", **change)])["hits"]
    assert hits.state == FAIL
    assert words in hits.reason


def test_what_is_not_a_number_is_identical_to_nothing(send: Send, decoded: Any) -> None:
    nan = {"logprobs": [math.nan, -0.2], "faces": {"null": 1}}
    assert judge([send("cold", **nan), send("hit", **nan)])["hits"].state == FAIL
    row = {"top": [[(5, math.nan)]], "output_ids": [5], "logprobs": [-0.1]}
    assert judge([send("cold", **row), send("hit", **row)])["hits"].state == FAIL
    broken = [-0.1, math.nan, -0.3]
    assert judge(decoded(broken, broken, broken))["decode"].state == FAIL


def test_decode_is_held_against_its_clean_prefill(decoded: Any) -> None:
    moved = [-0.1, -0.2, -0.3 - math.ulp(0.3)]
    cell = judge(decoded(moved, SCORED, SCORED))["decode"]
    assert (cell.state, cell.corrupt, cell.exercised) == (FAIL, 1, 2)
    assert "a/b, token 22, logprob of the token: -0.30000000000000004 decode, -0.3 clean" in cell.reason
    again = judge(decoded(SCORED, SCORED, moved))["decode"]
    assert "-0.3 clean prefill, -0.30000000000000004 clean prefill again" in again.reason
    short = judge(decoded(SCORED, SCORED[:2], SCORED[:2]))["decode"]
    assert short.state == FAIL


@pytest.mark.parametrize(
    ("hit", "why"),
    [
        ({"cached_tokens": 0}, "no hit"),
        ({"error": "HTTP 429"}, "the request failed"),
        ({"mismatched": True}, "logprobs are of other tokens"),
    ],
)
def test_what_says_nothing_is_not_compared(send: Send, hit: dict[str, Any], why: str) -> None:
    cell = judge([send("cold"), send("hit", **hit)])["hits"]
    assert (cell.state, cell.exercised) == (NOT_EXERCISED, 0)
    assert why in cell.reason
    one = judge([send("cold"), send("hit", **hit), send("hit")])["hits"]
    assert (one.state, one.exercised, sum(one.missed.values())) == (PASS, 1, 1)


def test_nothing_to_compare_is_no_pass(send: Send, decoded: Any) -> None:
    assert {cell.state for cell in judge([]).values()} == {NOT_EXERCISED}
    assert judge([send("hit")])["hits"].state == NOT_EXERCISED
    alone = judge(decoded())["decode"]
    assert (alone.state, alone.reason) == (NOT_EXERCISED, "no clean prefill of the answer")
    warm = judge([send("cold"), send("cold2", cached_tokens=192)])["cold again"]
    assert warm.state == NOT_EXERCISED


def test_only_answers_of_one_group_are_compared(send: Send) -> None:
    other = {"logprobs": [-0.3, -0.2], "top": []}
    records = [
        send("cold"),
        send("hit"),
        send("cold", group="c/d", **other),
        send("hit", group="c/d", **other),
    ]
    assert judge(records)["hits"].state == PASS
    second = [send(role, attempt=1, **other) for role in ("cold", "hit")]
    assert judge([send("cold"), send("hit"), *second])["hits"].state == PASS
    restarted = [send(role, visit=2, **other) for role in ("cold", "hit")]
    assert judge([send("cold"), send("hit"), *restarted])["hits"].state == PASS


def test_paths_that_no_probe_of_the_plan_takes_have_no_cell(send: Send) -> None:
    records = [send("cold", probe="sweep"), send("hit", probe="sweep")]
    assert {name: cell.state for name, cell in judge(records, ["sweep"]).items()} == {"hits": PASS}
    assert list(judge([], ["resend", "decode"], {"decode": "no logprobs"})) == [
        "cold again",
        "hits",
    ]
    assert len(judge([], ["speed"])) == 3
