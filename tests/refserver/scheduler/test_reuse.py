"""What a prefill leaves in the cache, and where the next one resumes."""

from collections.abc import Callable

import pytest

from fidelity.refserver.requests import Request

from .conftest import Bench, ids, resends


@pytest.mark.parametrize(
    ("length", "cached"),
    [
        (63, [0, 0, 0]),
        (65, [0, 64, 64, 64]),
        (128, [0, 0, 64, 64]),
        (192, [0, 0, 128, 128]),
        (193, [0, 192, 192, 192]),
        (194, [0, 192, 192]),
        (195, [0, 192, 192]),
        (256, [0, 0, 192, 192]),
        (257, [0, 256, 256]),
    ],
)
def test_cached_tokens_of_resends(bench: Callable[..., Bench], length: int, cached: list[int]) -> None:
    assert resends(bench(), length, len(cached)) == cached


@pytest.mark.parametrize(
    ("length", "cached"),
    [(65, [0, 0, 0, 0]), (193, [0, 0, 128, 128, 128]), (194, [0, 192, 192]), (192, [0, 0, 128, 128])],
)
def test_the_retreat_leaves_two_tokens(bench: Callable[..., Bench], length: int, cached: list[int]) -> None:
    assert resends(bench(guard=("retreat",)), length, len(cached)) == cached


@pytest.mark.parametrize("page", [1, 16, 64])
def test_the_page_size_does_not_move_a_grid_of_64(bench: Callable[..., Bench], page: int) -> None:
    assert resends(bench(page_size=page), 193, 3) == [0, 192, 192]


def test_a_page_of_128_moves_the_grid(bench: Callable[..., Bench]) -> None:
    one = bench(page_size=128)
    assert resends(one, 193, 3) == [0, 128, 128]
    assert resends(one, 129, 3, first=40) == [0, 128, 128]


def test_a_tail_of_one_stores_nothing_new(bench: Callable[..., Bench]) -> None:
    one = bench()
    resends(one, 193, 1)
    before = (one.scheduler.cache.tokens, one.scheduler.cache.states)
    resends(one, 193, 2)
    assert (one.scheduler.cache.tokens, one.scheduler.cache.states) == before == (192, 1)


def test_a_shared_start_moves_the_one_checkpoint_to_the_branching_point(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    system = ids(70)
    one.run(one.sequence(system + [250] * 123))
    branched = []
    for _ in range(3):
        sequence = one.sequence(system + [260] * 123)
        one.run(sequence)
        branched.append(sequence.cached_tokens)
    assert branched == [0, 64, 192]


def test_the_extend_resumes_with_the_rest_of_the_ids_and_the_cached_kv(bench: Callable[..., Bench]) -> None:
    one = bench()
    resends(one, 193, 2)
    segment = one.model.forwards[-1][0]
    assert (segment.ids.tolist(), segment.state.length, segment.checkpoints) == (ids(193)[192:], 192, ())
    assert segment.state.keys[0].ravel().tolist() == ids(192)
    assert segment.state.recurrent.conv[0].item() == 192


def test_decoding_keeps_a_checkpoint_every_256_tokens(bench: Callable[..., Bench]) -> None:
    one = bench()
    sequence = one.sequence([20, 21, 22], new=260)
    one.run(sequence)  # 262 tokens computed: the last new one is never fed back
    turn = one.sequence([20, 21, 22, *sequence.output_ids[:257]])
    one.run(turn)
    assert turn.cached_tokens == 256
    segment = one.model.forwards[-1][0]
    assert segment.state.recurrent.conv[0].item() == 256
    assert segment.state.keys[0].ravel().tolist() == [20, 21, 22, *sequence.output_ids[:253]]


def test_decoding_keeps_nothing_at_the_grid_points_between(bench: Callable[..., Bench]) -> None:
    one = bench()
    sequence = one.sequence([20, 21, 22], new=200)
    one.run(sequence)
    turn = one.sequence([20, 21, 22, *sequence.output_ids])
    one.run(turn)
    assert turn.cached_tokens == 0


def test_no_buffer_keeps_the_state_at_the_end_of_an_answer_only(bench: Callable[..., Bench]) -> None:
    one = bench(strategy="no_buffer", page_size=1)
    assert resends(one, 193, 3) == [0, 0, 0]
    longer = one.sequence([*ids(193), 7])
    one.run(longer)
    assert longer.cached_tokens == 193
    answer = one.sequence([20, 21, 22], new=5)
    one.run(answer)
    turn = one.sequence([20, 21, 22, *answer.output_ids[:4], 7])
    one.run(turn)
    assert turn.cached_tokens == 7


def test_a_prompt_logprob_start_caps_the_match(bench: Callable[..., Bench]) -> None:
    one = bench()
    resends(one, 193, 1)
    request = one.sequence(ids(193)).request
    for start, cached in ((192, 192), (191, 0), (0, 0)):
        sequence = one.sequence(ids(193))
        sequence.request = Request(request.ids, request.sampling, prompt_from=start)
        one.run(sequence)
        assert sequence.cached_tokens == cached
        assert one.model.forwards[-1][0].logits_from == start


def test_states_are_evicted_least_recently_used_first(bench: Callable[..., Bench]) -> None:
    one = bench(max_states=2)
    for first in (20, 30, 40):
        resends(one, 65, 1, first)
    assert one.scheduler.cache.states == 2
    assert [resends(one, 65, 1, first)[0] for first in (40, 30, 20)] == [64, 64, 0]
