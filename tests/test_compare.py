import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.compare import (
    Agreement,
    broken_rules,
    compare_first_token,
    covered_mass,
    longest_run,
    top_probability,
)
from fidelity.observations import Answer

ROW = [(5, -0.05), (6, -4.0), (7, -4.5), (8, -5.0), (9, -6.0)]


def answer(token: int = 5, **changes: object) -> Answer:
    """A clean answer: `token` with probability 0.95."""
    ids = {5: token, token: 5}
    row = [(ids.get(i, i), value) for i, value in ROW]
    made = Answer(status=200, latency=0.1, output_ids=[token], logprobs=[-0.05], top=[row], values=6)
    return replace(made, **changes)  # type: ignore[arg-type]


def tie(gap: float) -> Answer:
    """A cold answer whose second token is `gap` nats below the first."""
    return answer(top=[[(5, -0.75), (6, -0.75 - gap), (7, -4.0), (8, -5.0), (9, -6.0)]], logprobs=[-0.75])


def test_a_clean_answer_breaks_no_rule() -> None:
    assert broken_rules(answer()) == ()


@pytest.mark.parametrize("face", ["null", "nan", "inf", "http nan", "finish nan"])
def test_one_nan_anywhere_breaks_a_rule(face: str) -> None:
    assert broken_rules(answer(faces={face: 1})) == (f"NaN: 1 {face}",)


def test_a_clamped_value_off_the_emitted_token_breaks_none() -> None:
    """A token that cannot be sampled is -inf on healthy servers with a mask."""
    row = [*ROW[:4], (9, -math.inf)]
    assert broken_rules(answer(top=[row], faces={"-inf": 1})) == ()
    assert broken_rules(answer(faces={"-9999": 1, "huge": 2, "-100": 1})) == ()


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, -9999.0])
def test_the_emitted_token_needs_a_number(value: float) -> None:
    rules = broken_rules(answer(logprobs=[value], faces={"-9999": 1}))
    assert rules[0] == "the emitted token's logprob is not a number"


def test_a_flat_row() -> None:
    flat = [(n, -math.log(512) + n * 1e-6) for n in range(20)]
    assert "flat row" in broken_rules(answer(top=[flat], logprobs=[-math.log(512)], output_ids=[0]))
    sloped = [(n, -6.0 - n * 1e-3) for n in range(20)]
    assert broken_rules(answer(top=[sloped], logprobs=[-6.0], output_ids=[0])) == ()
    assert broken_rules(answer(top=[[(5, -0.7), (6, -0.7)]], logprobs=[-0.7])) == ()  # two alike are a tie


@pytest.mark.parametrize(("run", "broken"), [(7, False), (8, True), (64, True)])
def test_a_run_of_one_id(run: int, broken: bool) -> None:
    ids = [3, *([0] * run), 4]
    assert broken_rules(answer(output_ids=ids)) == ((f"run of one id ({run})",) if broken else ())


def test_probabilities_above_one() -> None:
    assert broken_rules(answer(top=[[(5, 0.1)]])) == ("probabilities above 1 (output token 0)",)
    assert broken_rules(answer(top=[[(5, -0.5), (6, -0.5), (7, -0.5)]], logprobs=[-0.5])) == (
        "probabilities above 1 (output token 0)",
    )
    assert broken_rules(answer(top=[[(5, 9e-4)]], logprobs=[9e-4])) == ()  # rounding


def test_temperature_0_emits_the_top_token() -> None:
    assert broken_rules(answer(logprobs=[-4.0])) == (
        "not the top token at temperature 0 (3.95 nat below, output token 0)",
    )
    assert broken_rules(answer(logprobs=[-0.15])) == ()  # within a near-tie


@given(st.lists(st.integers(0, 2), max_size=30))
def test_longest_run_by_trying_all_pieces(ids: list[int]) -> None:
    pieces = [ids[a:b] for a in range(len(ids)) for b in range(a + 1, len(ids) + 1)]
    assert longest_run(ids) == max((len(piece) for piece in pieces if len(set(piece)) == 1), default=0)


def test_same_token_whatever_its_probability() -> None:
    assert compare_first_token(answer(), answer()) == Agreement("same", 0.0)
    lower = answer(top=[[(5, -0.69), (6, -0.8)]], logprobs=[-0.69])
    assert compare_first_token(answer(), lower).kind == "same"


@pytest.mark.parametrize(
    ("gap", "kind", "corrupt"),
    [
        (0.0, "near-tie", False),
        (0.125, "near-tie", False),
        (0.125 + 2e-6, "near-tie", False),  # a bf16 step between two single-precision logprobs
        (0.1251, "hard flip", True),
        (3.0, "hard flip", True),
    ],
)
def test_a_flip_counts_by_its_regret_under_the_cold_distribution(
    gap: float, kind: str, corrupt: bool
) -> None:
    agreement = compare_first_token(tie(gap), answer(6))
    assert agreement.kind == kind
    assert agreement.corrupt is corrupt
    assert agreement.regret == pytest.approx(gap)


def test_the_near_tie_threshold_is_the_plans() -> None:
    assert compare_first_token(tie(0.3), answer(6), near_tie=0.5).kind == "near-tie"


def test_of_two_tied_tokens_either_is_the_same() -> None:
    """The server emits one of them and may list the other one first."""
    cold = tie(0.0)
    cold.output_ids = [6]
    for token in (5, 6):
        assert compare_first_token(cold, answer(token)).kind == "same"


def test_a_token_outside_the_cold_list_is_never_a_near_tie() -> None:
    agreement = compare_first_token(answer(), answer(77))
    assert agreement.kind == "off-list"
    assert agreement.corrupt
    assert agreement.regret == pytest.approx(6.0 - 0.05)  # at least down to the last one listed
    close = answer(top=[[(5, -0.7), (6, -0.71)]], logprobs=[-0.7])
    assert compare_first_token(close, answer(77)).corrupt


def test_the_order_of_the_servers_list_does_not_matter() -> None:
    shuffled = answer(top=[list(reversed(ROW))])
    assert compare_first_token(shuffled, answer(6)).regret == pytest.approx(3.95)


def test_broken_comes_before_any_comparison() -> None:
    """The NaN row of a hit may well emit the right id."""
    agreement = compare_first_token(answer(), answer(faces={"null": 6}, logprobs=[math.nan]))
    assert (agreement.kind, agreement.corrupt) == ("broken", True)
    assert agreement.rules == ("NaN: 6 null",)
    assert agreement.regret == math.inf
    no_answer = Answer(status=500, latency=0.1, error="HTTP 500", faces={"http nan": 1}, values=1)
    assert compare_first_token(answer(), no_answer).kind == "broken"


def test_a_nan_among_the_cold_logprobs_is_no_pass() -> None:
    nan_row = answer(top=[[(5, -0.05), (6, math.nan)]], faces={"nan": 1})
    assert compare_first_token(nan_row, answer()).kind == "unreadable"


@pytest.mark.parametrize(
    "empty",
    [
        Answer(status=429, latency=0.1, error="HTTP 429: busy"),
        Answer(status=200, latency=0.1, output_ids=[5], text="x"),
        Answer(status=200, latency=0.1, output_ids=[5], top=[[]]),
        Answer(status=200, latency=0.1, output_ids=[], top=[ROW]),
    ],
)
def test_nothing_to_compare_is_unreadable_and_never_the_same(empty: Answer) -> None:
    for agreement in (compare_first_token(empty, answer()), compare_first_token(answer(), empty)):
        assert agreement.kind == "unreadable"
        assert not agreement.corrupt


logprob = st.floats(-40, 0) | st.sampled_from([math.nan, math.inf, -math.inf, -9999.0])
small = st.integers(0, 9)
any_answer = st.builds(
    Answer,
    status=st.just(200),
    latency=st.just(0.1),
    output_ids=st.lists(small, max_size=3),
    logprobs=st.lists(logprob, max_size=3),
    top=st.lists(st.lists(st.tuples(small, logprob), max_size=4), max_size=2),
    faces=st.dictionaries(st.sampled_from(["null", "nan", "-inf", "-9999"]), st.integers(1, 5), max_size=2),
)


@given(any_answer, any_answer)
@settings(max_examples=60)
def test_no_pair_of_answers_raises_and_the_same_needs_the_same_token(cold: Answer, other: Answer) -> None:
    agreement = compare_first_token(cold, other)
    if agreement.kind in ("same", "near-tie"):
        best = max(value for _, value in cold.top[0])
        known = [value for i, value in cold.top[0] if i == other.output_ids[0]]
        assert other.output_ids[0] == cold.output_ids[0] or any(best - value <= 0.125 for value in known)
    assert agreement.corrupt == (agreement.kind in ("hard flip", "off-list", "broken"))
    if broken_rules(other):
        assert agreement.corrupt


@pytest.mark.parametrize(
    ("top", "probability"),
    [
        ([ROW], math.exp(-0.05)),
        ([list(reversed(ROW))], math.exp(-0.05)),
        ([], math.nan),
        ([[]], math.nan),
        ([[(5, -0.05), (6, math.nan)]], math.nan),
    ],
)
def test_top_probability(top: list[list[tuple[int, float]]], probability: float) -> None:
    assert top_probability(answer(top=top)) == pytest.approx(probability, nan_ok=True)


def test_logprobs_of_other_tokens_say_nothing() -> None:
    """Neither a verdict against the answer nor one for it; a NaN among them counts all the same."""
    mismatched = answer(mismatched=True, logprobs=[-9.0])
    assert broken_rules(answer(logprobs=[-9.0]))
    assert broken_rules(mismatched) == ()
    for pair in ((answer(), mismatched), (mismatched, answer())):
        assert compare_first_token(*pair).kind == "unreadable"
    nan = answer(mismatched=True, faces={"null": 1}, logprobs=[math.nan])
    assert compare_first_token(answer(), nan).kind == "broken"


@pytest.mark.parametrize(
    ("top", "covered"),
    [
        ([ROW], sum(math.exp(value) for _, value in ROW)),
        ([], 0.0),
        ([[(5, math.nan)]], math.nan),
        ([[(5, 1e9)]], math.e),
    ],
)
def test_covered_mass(top: list[list[tuple[int, float]]], covered: float) -> None:
    assert covered_mass(answer(top=top)) == pytest.approx(covered, nan_ok=True)
