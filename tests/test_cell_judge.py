"""Three states from counted prompts. Exact limits: 0 of 30 is at most 9.6 %, 0 of 6 at most 39.4 %."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fidelity.cell_judge import judge_floor, judge_hits
from fidelity.comparison import Tie, compare_floor, compare_hits
from fidelity.evidence import Group
from fidelity.plan import Thresholds
from fidelity.probes.cells import Cell
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, CellVerdict

CELL = Cell("L=193 tail=1", "suspect", 193, 1, "why")
LIMITS = Thresholds()
FLIP = {"output_ids": [6], "text": "Rome", "top": [[(6, -0.1), (5, -3.0)]]}
NAN = {"output_ids": [0], "text": "!", "logprobs": [math.nan], "faces": {"null": 6}}
MISS = {"cached_tokens": 0}
FAILED = {"status": 429, "error": "HTTP 429: busy", "output_ids": [], "top": [], "logprobs": []}

Made = Callable[..., list[Group]]


@pytest.fixture(scope="session")
def groups(observation: Any) -> Made:
    """`count` clean prompts with 2 hits each; `odd[n]` changes the hits of prompt n, one dict for each."""

    def make(count: int, odd: dict[int, list[dict[str, Any]]] | None = None, **all_hits: Any) -> list[Group]:
        made = []
        for n in range(count):
            changes = (odd or {}).get(n, [{}, {}])
            prompt = f"a/{n}"
            cold = observation(role="cold", cached_tokens=0, prompt=prompt, order=10 * n)
            cold2 = observation(role="cold2", cached_tokens=0, prompt=prompt, order=10 * n + 1)
            hits = [
                observation(**{"prompt": prompt, "order": 10 * n + 2 + i, **all_hits, **change})
                for i, change in enumerate(changes)
            ]
            made.append(Group(prompt, cold, cold2, hits))
        return made

    return make


def judged(groups: list[Group], limits: Thresholds = LIMITS, min_tail: int = 1) -> CellVerdict:
    tie = Tie(limits.near_tie, "thresholds.near_tie")
    sends = compare_hits(CELL, groups, tie.threshold, min_tail)
    return judge_hits("none", CELL, sends, tie, limits, min_tail)


def judged_floor(groups: list[Group]) -> CellVerdict:
    tie = Tie(LIMITS.near_tie, "thresholds.near_tie")
    return judge_floor("none", CELL, compare_floor(groups, tie.threshold), tie, LIMITS)


def test_0_of_30_passes(groups: Made) -> None:
    verdict = judged(groups(30))
    assert verdict.state == PASS
    assert verdict.reason == "0 corrupt prompts of 30: at most 9.6 % at 95%"
    assert verdict.rate_upper == pytest.approx(1 - 0.05 ** (1 / 30))
    assert (verdict.prompts, verdict.exercised, verdict.corrupt) == (30, 30, 0)
    assert (verdict.sends, verdict.corrupt_sends) == (60, 0)
    assert verdict.agreement == {"same": 60}
    assert (verdict.tails, verdict.cached, verdict.missed) == ({"1": 60}, {"192": 60}, {})
    assert all(figure.holds for figure in verdict.figures)
    assert [figure.threshold for figure in verdict.figures] == [0.1, 0.1]


def test_28_clean_prompts_are_one_too_few_and_29_enough(groups: Made) -> None:
    assert judged(groups(29)).state == PASS
    verdict = judged(groups(28))
    assert verdict.state == INCONCLUSIVE
    assert verdict.reason.endswith("allowed are 10 %; 1 more clean prompts would decide")


def test_0_of_6_says_how_many_more(groups: Made) -> None:
    verdict = judged(groups(6))
    assert verdict.state == INCONCLUSIVE
    assert verdict.reason == (
        "0 corrupt prompts of 6: at most 39.4 % at 95%, allowed are 10 %; 23 more clean prompts would decide"
    )
    assert not all(figure.holds for figure in verdict.figures)
    assert judged(groups(6), Thresholds(max_rate=0.4)).state == PASS


def test_1_hard_flip_of_30_decides_nothing(groups: Made) -> None:
    verdict = judged(groups(30, {4: [FLIP, {}]}))
    assert verdict.state == INCONCLUSIVE
    assert verdict.reason == (
        "1 corrupt prompts of 30: at most 14.9 % at 95%, allowed are 10 %; 16 more clean prompts would decide"
    )
    assert (verdict.corrupt, verdict.corrupt_sends) == (1, 1)
    assert verdict.agreement == {"same": 59, "hard flip": 1}


def test_30_of_30_fails(groups: Made) -> None:
    verdict = judged(groups(30, **FLIP))
    assert verdict.state == FAIL
    assert verdict.reason == "30 corrupt prompts of 30: at least 90.5% at 95%"
    assert verdict.rate_lower == pytest.approx(0.05 ** (1 / 30))
    assert verdict.corrupt_sends == 60


def test_one_nan_anywhere_fails(groups: Made) -> None:
    verdict = judged(groups(30, {29: [{}, NAN]}))
    assert verdict.state == FAIL
    assert verdict.reason == "1 corrupt prompts of 30: NaN in 1 sends"
    assert verdict.rules == {"NaN": 1}
    assert verdict.faces == {"null": 6}
    assert verdict.values == 60 * 6


def test_a_nan_on_a_send_that_missed_its_path_fails_too(groups: Made) -> None:
    verdict = judged(groups(30, {0: [{**NAN, **MISS}, {}]}))
    assert verdict.state == FAIL
    http = {**FAILED, "status": 500, "error": "HTTP 500", "faces": {"http nan": 1}, "cached_tokens": None}
    assert judged(groups(30, {0: [http, {}]})).state == FAIL


def test_a_flip_off_the_path_is_counted_all_the_same(groups: Made) -> None:
    verdict = judged(groups(30, **FLIP, **MISS))
    assert (verdict.state, verdict.exercised, verdict.corrupt) == (FAIL, 30, 30)


@settings(deadline=None)
@given(count=st.integers(1, 60), corrupt=st.integers(0, 60), rate=st.sampled_from([0.01, 0.1, 0.4]))
def test_states_are_the_exact_limits(count: int, corrupt: int, rate: float, groups: Made) -> None:
    """Fail only when the lower limit is over the rate, pass only when the upper one is not."""
    corrupt = min(corrupt, count)
    verdict = judged(groups(count, {n: [FLIP] for n in range(corrupt)}), Thresholds(max_rate=rate))
    at_least = stats.binom.sf(corrupt - 1, count, rate)
    at_most = stats.binom.cdf(corrupt, count, rate)
    expected = FAIL if corrupt and at_least < 0.05 else PASS if at_most <= 0.05 else INCONCLUSIVE
    assert verdict.state == expected


def test_near_ties_are_counted_and_never_corrupt(groups: Made) -> None:
    made = groups(30, output_ids=[6], top=[[(6, -0.7), (5, -0.75)]])
    for group in made:
        group.cold.answer.top = [[(5, -0.7), (6, -0.8), (7, -5.0)]]
    verdict = judged(made)
    assert verdict.state == PASS
    assert verdict.agreement == {"near-tie": 60}
    assert judged(made, Thresholds(near_tie=0.05)).state == FAIL


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (MISS, "no hit: cached_tokens 0 instead of 192 (60 sends)"),
        ({"cached_tokens": 128}, "cached_tokens 128 instead of 192 (60 sends)"),
        ({"cached_tokens": None}, "the server reports no cached_tokens (60 sends)"),
        ({"prompt_tokens": 194}, "prompt_tokens 194 instead of 193 (60 sends)"),
        (FAILED, "the request failed (60 sends)"),
        ({"logprobs": [], "top": []}, "the answer has no logprobs (60 sends)"),
    ],
)
def test_what_never_took_the_path_is_not_exercised(change: dict[str, Any], reason: str, groups: Made) -> None:
    verdict = judged(groups(30, **change))
    assert verdict.state == NOT_EXERCISED
    assert verdict.reason == reason
    assert verdict.exercised == 0
    assert (verdict.rate_lower, verdict.rate_upper) == (0.0, 1.0)
    assert verdict.figures == ()


def test_nothing_measured_is_not_exercised(groups: Made) -> None:
    assert judged([]).state == NOT_EXERCISED
    assert judged([]).reason == "no prompt was measured"
    assert judged(groups(3, {0: [], 1: [], 2: []})).reason == "no send was made"


def test_prompts_that_missed_are_not_passed_over(groups: Made) -> None:
    verdict = judged(groups(40, {n: [MISS, MISS] for n in range(10)}))
    assert verdict.state == INCONCLUSIVE
    assert verdict.reason == "only 30 of 40 prompts took the path (no hit: cached_tokens 0 instead of 192)"
    # One proved send of a prompt is not enough: the other might be the one that goes wrong.
    verdict = judged(groups(40, {n: [MISS, {}] for n in range(10)}))
    assert (verdict.state, verdict.exercised) == (INCONCLUSIVE, 30)
    assert verdict.missed == {"no hit: cached_tokens 0 instead of 192": 10}


def test_unreadable_sends_are_counted_once(groups: Made) -> None:
    verdict = judged(groups(3, {0: [FAILED, {"top": []}]}))
    assert verdict.missed == {"the request failed": 1, "the answer has no logprobs": 1}


def test_an_earlier_attempt_counts_only_where_it_was_corrupt(groups: Made) -> None:
    earlier = groups(3, {0: [{}, FAILED], 1: [NAN, FAILED], 2: [FLIP, FAILED]})
    for group in earlier:
        group.last = False
    verdict = judged([*earlier, *groups(30)])
    assert (verdict.prompts, verdict.exercised, verdict.corrupt) == (30, 30, 2)
    assert verdict.state == FAIL
    assert verdict.missed == {}
    assert verdict.sends == 62


def structural(
    tails: tuple[int, int], odd: dict[str, Any], made: Made, expected: tuple[int, int]
) -> CellVerdict:
    changes = [
        {"cached_tokens": 193 - tail, "expected_cached": 193 - wanted, **odd}
        for tail, wanted in zip(tails, expected, strict=True)
    ]
    return judged(made(30, dict.fromkeys(range(30), changes)), min_tail=2)


def test_retreat_removes_the_one_token_path(groups: Made) -> None:
    verdict = structural((193, 65), {}, groups, expected=(193, 65))
    assert verdict.state == PASS
    assert verdict.reason == (
        "one-token path removed: tails 65, 193; 0 corrupt prompts of 30: at most 9.6 % at 95%"
    )
    assert verdict.tails == {"65": 30, "193": 30}


def test_retreat_that_leaves_a_one_token_tail_fails(groups: Made) -> None:
    verdict = structural((193, 1), {}, groups, expected=(193, 65))
    assert verdict.state == FAIL
    assert verdict.reason == "the guard leaves no tail under 2, yet 30 re-sends recomputed less"


def test_retreat_with_a_wrong_answer_or_another_tail_is_no_pass(groups: Made) -> None:
    assert structural((193, 65), FLIP, groups, expected=(193, 65)).state == FAIL
    verdict = structural((129, 129), {}, groups, expected=(193, 65))
    assert verdict.state == NOT_EXERCISED


def test_the_floor_compares_cold_with_cold(groups: Made) -> None:
    made = groups(30, {0: [NAN, NAN]})
    verdict = judged_floor(made)
    assert (verdict.name, verdict.kind, verdict.state) == ("L=193 cold", "floor", PASS)
    assert verdict.tail is None
    assert verdict.sends == 30
    assert verdict.divergences is not None
    assert verdict.divergences.jsd_upper.n == 30
    made = groups(30)
    made[0].cold.answer.faces = {"nan": 1}
    broken = judged_floor(made)
    assert broken.state == FAIL
    assert broken.rules == {"NaN": 1}


def test_a_cold_repeat_from_the_cache_is_no_floor(groups: Made) -> None:
    made = groups(30)
    for group in made:
        assert group.cold2 is not None
        group.cold2.answer.cached_tokens = 128
    verdict = judged_floor(made)
    assert verdict.state == NOT_EXERCISED
    assert verdict.reason == "the cold send was served from the cache (30 sends)"


def test_divergences_never_skip_what_is_not_finite(groups: Made) -> None:
    clean = judged(groups(10)).divergences
    assert clean is not None
    assert (clean.kl_lower.maximum, clean.jsd_lower.maximum, clean.kl_lower.nonfinite) == (0.0, 0.0, 0)
    assert clean.p_covered == pytest.approx(sum(math.exp(v) for v in (-0.1, -3, -4, -5, -6)))
    one_nan = judged(groups(10, {0: [{**NAN, "top": [[(5, math.nan), (6, math.nan)]]}, {}]})).divergences
    assert one_nan is not None
    for spread in (one_nan.kl_lower, one_nan.jsd_lower, one_nan.jsd_upper):
        assert (spread.n, spread.nonfinite, spread.maximum) == (20, 1, math.inf)
        assert spread.median < 0.02
    half = judged(groups(10, {n: [{"top": []}, {"top": []}] for n in range(10)})).divergences
    assert half is not None
    assert half.jsd_upper.median == math.inf


def test_examples_are_readable(groups: Made, observation: Any) -> None:
    made = groups(5, {n: [FLIP, NAN] for n in (1, 2, 3, 4)})
    made[3].show_hit = observation(role="show-hit", text="!!!!")
    made[3].show_cold = observation(role="show-cold", text="Paris.")
    first, *more = judged(made).examples
    assert (first.prompt, first.cold, first.other, first.expected) == ("a/3", "Paris.", "!!!!", "Paris")
    assert (first.why, first.cached_tokens, first.tail, first.order) == ("hard flip", 192, 1, 32)
    assert [one.prompt for one in more] == ["a/1", "a/2"]
    assert more[0].other == "Rome"


def _texts(groups: Made, **change: Any) -> Iterator[str]:
    yield from (example.other for example in judged(groups(1, {0: [change]})).examples)


def test_examples_without_a_text(groups: Made) -> None:
    assert list(_texts(groups, **{**FLIP, "text": None})) == ["ids [6]"]
    lost = {
        **FAILED,
        "status": 500,
        "error": "HTTP 500: out of range",
        "faces": {"http nan": 1},
        "text": None,
    }
    assert list(_texts(groups, **lost)) == ["HTTP 500: out of range"]
