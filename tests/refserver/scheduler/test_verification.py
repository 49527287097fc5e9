"""Speculative decoding in the scheduler: what is verified, what is kept of it, and what is rolled back."""

from collections.abc import Callable

import pytest

from fidelity.refserver.speculative import spec_fields

from .conftest import EOS, Bench, Guesses, ids

Make = Callable[..., Bench]


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_the_drafts_are_kept_up_to_the_first_wrong_one(bench: Make, right: int) -> None:
    one = bench(Guesses(right))
    sequence = one.sequence([20, 21], new=1 + 3 * (right + 1))
    one.run(sequence)
    assert sequence.output_ids == list(range(22, 23 + 3 * (right + 1)))
    assert sequence.accepted == [right] * 3
    assert one.model.rows() == [2, 4, 4, 4]
    assert [forward[0].decode for forward in one.model.forwards] == [False, True, True, True]


def test_a_draft_starts_from_the_row_that_chose_the_last_token(bench: Make) -> None:
    guesses = Guesses(2)
    one = bench(guesses)
    one.run(one.sequence([20, 21], new=7))
    assert guesses.asked == [
        [(21.0, 22)],
        [(24.0, 25)],
    ]  # the hidden state is the id the row was computed for


def test_the_state_goes_back_to_the_last_token_kept(bench: Make) -> None:
    one = bench(Guesses(1))
    one.run(one.sequence([20, 21], new=7))
    for forward, length in zip(one.model.forwards[1:], (2, 4, 6), strict=True):
        (segment,) = forward
        assert segment.state.length == length
        assert segment.state.recurrent.conv[0].item() == length
        assert segment.state.keys[0].ravel().tolist() == ids(length)


def test_a_batch_is_drafted_and_verified_together_and_each_keeps_its_own(bench: Make) -> None:
    guesses = Guesses(3)
    one = bench(guesses)
    long, short = one.sequence([20], new=9), one.sequence([30], new=3)
    one.run(long, short)
    assert (long.output_ids, short.output_ids) == (list(range(21, 30)), [31, 32, 33])
    assert one.model.rows() == [2, 8, 4]
    assert [len(step) for step in guesses.asked] == [2, 1]
    assert (long.accepted, short.accepted) == ([3, 3], [1])


def test_an_answer_ends_where_it_would_without_drafts(bench: Make) -> None:
    params: list[dict[str, object]] = [
        {"new": 9},
        {"new": 3, "ignore_eos": True},
        {"new": 9, "stop_token_ids": (298,)},
        {"new": 9, "stop": ("mn",)},  # 298 is m, 299 is n
    ]
    answers = []
    for draft in (None, Guesses(3)):
        one = bench(draft)
        sequences = [one.sequence([295], **given) for given in params]  # type: ignore[arg-type]
        one.run(*sequences)
        answers.append([(sequence.output_ids, sequence.finish) for sequence in sequences])
    assert answers[0] == answers[1]
    assert answers[1][0] == ([296, 297, 298, EOS], {"type": "stop", "matched": EOS})


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_checkpoint_passed_in_the_middle_of_a_verification_is_kept(bench: Make, right: int) -> None:
    one = bench(Guesses(right))
    sequence = one.sequence([20, 21, 22], new=270)
    one.run(sequence)
    turn = one.sequence([20, 21, 22, *sequence.output_ids[:257]])
    one.run(turn)
    assert turn.cached_tokens == 256
    segment = one.model.forwards[-1][0]
    assert segment.state.recurrent.conv[0].item() == 256
    assert segment.state.keys[0].ravel().tolist() == [20, 21, 22, *sequence.output_ids[:253]]


def test_a_checkpoint_that_only_wrong_drafts_reached_is_not_kept(bench: Make) -> None:
    one = bench(Guesses(0))
    sequence = one.sequence([20, 21, 22], new=253)  # 255 tokens computed for good, 258 with the drafts
    one.run(sequence)
    assert sequence.tracked is None


def test_no_buffer_keeps_the_state_after_the_last_token_computed(bench: Make) -> None:
    one = bench(Guesses(3), strategy="no_buffer", page_size=1)
    answer = one.sequence([20, 21, 22], new=4)
    one.run(answer)
    assert answer.output_ids == [23, 24, 25, 26]
    turn = one.sequence([20, 21, 22, *answer.output_ids[:3], 7])
    one.run(turn)
    assert turn.cached_tokens == 6
    assert one.model.forwards[-1][0].state.recurrent.conv[0].item() == 6


def test_what_a_reply_says_of_its_drafts(bench: Make) -> None:
    one = bench(Guesses(2), speculative_num_steps=5)
    sequence = one.sequence([20], new=8)
    one.run(sequence)
    assert spec_fields(sequence) == {
        "spec_accept_rate": 4 / 15,
        "spec_accept_length": 8 / 3,
        "spec_num_correct_drafts": 4,
        "spec_num_proposed_drafts": 15,
        "spec_verify_ct": 3,
        "spec_correct_drafts_histogram": [1, 0, 2],
    }
    totals = one.scheduler.totals
    assert (totals.verifications, totals.verified_tokens) == (3, 7)
    first_only = one.sequence([20], new=1)
    one.run(first_only)
    assert spec_fields(first_only) == {}


def test_a_verification_that_fails_ends_the_batch_and_the_thread_goes_on(bench: Make) -> None:
    one = bench(Guesses(3))
    failing = one.sequence([9], new=9)  # the third draft is 13
    one.run(failing)
    assert failing.failure == "RuntimeError: thirteen"
    healthy = one.sequence([20], new=3)
    one.run(healthy)
    assert healthy.output_ids == [21, 22, 23]
