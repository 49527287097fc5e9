"""The engine's thread: what is computed together, when it ends, and what it survives."""

from collections.abc import Callable

import numpy as np

from fidelity.refserver.sequence import Sequence

from .conftest import EOS, Bench, ids, resends


def test_one_forward_an_extend_then_one_a_token(bench: Callable[..., Bench]) -> None:
    one = bench()
    sequence = one.sequence([20, 21], new=4)
    one.run(sequence)
    assert one.model.rows() == [2, 1, 1, 1]
    assert sequence.output_ids == [22, 23, 24, 25]
    assert sequence.finish == {"type": "length", "length": 4}
    assert [forward[0].decode for forward in one.model.forwards] == [False, True, True, True]


def test_a_group_is_one_extend_and_decodes_together(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.run(one.sequence([20, 21], new=3), one.sequence([30], new=2))
    assert one.model.rows() == [3, 2, 1]


def test_requests_that_come_apart_extend_apart(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.model.go.clear()
    first = one.sequence([20])
    one.scheduler.submit([first])
    assert one.model.entered.wait(5)
    later = [one.sequence([30, 31]), one.sequence([40, 41, 42])]
    for sequence in later:
        one.scheduler.submit([sequence])
    one.model.go.set()
    one.wait(first, *later)
    assert one.model.rows() == [1, 2, 3]


def test_a_newcomer_is_extended_before_the_running_decode(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.model.go.clear()
    running = one.sequence([20], new=3)
    one.scheduler.submit([running])
    assert one.model.entered.wait(5)
    newcomer = one.sequence([30, 31], new=2)
    one.scheduler.submit([newcomer])
    one.model.go.set()
    one.wait(running, newcomer)
    assert one.model.rows() in ([1, 2, 2, 1], [1, 1, 2, 2])  # before or after the first's second token
    assert one.scheduler.running == []


def test_the_running_are_bounded(bench: Callable[..., Bench]) -> None:
    one = bench(max_running_requests=2)
    sequences = [one.sequence([20 + index], new=3) for index in range(5)]
    for sequence in sequences:
        one.scheduler.submit([sequence])
    one.wait(*sequences)
    assert max(one.model.rows()) <= 2


def test_a_group_larger_than_the_bound_still_runs_as_one(bench: Callable[..., Bench]) -> None:
    one = bench(max_running_requests=2)
    one.run(*[one.sequence([20 + index], new=2) for index in range(3)])
    assert one.model.rows() == [3, 3]


def test_a_stop_token_a_stop_string_and_the_length_end_an_answer(bench: Callable[..., Bench]) -> None:
    one = bench()
    eos = one.sequence([296], new=9)
    ignored = one.sequence([296], new=3, ignore_eos=True)
    own = one.sequence([20], new=9, stop_token_ids=(23,))
    text = one.sequence([20], new=9, stop=("zz", "xy"))  # 23 is x, 24 is y
    one.run(eos, ignored, own, text)
    assert (eos.output_ids, eos.finish) == ([297, 298, EOS], {"type": "stop", "matched": EOS})
    assert (ignored.output_ids, ignored.finish) == ([297, 298, EOS], {"type": "length", "length": 3})
    assert (own.output_ids, own.finish) == ([21, 22, 23], {"type": "stop", "matched": 23})
    assert (text.output_ids, text.finish) == ([21, 22, 23, 24], {"type": "stop", "matched": "xy"})


def test_a_failing_request_ends_alone_and_the_thread_goes_on(bench: Callable[..., Bench]) -> None:
    one = bench()
    failing = one.sequence([13])
    one.run(failing)
    assert failing.failure == "RuntimeError: thirteen"
    healthy = one.sequence([20])
    one.run(healthy)
    assert healthy.output_ids == [21]


def test_a_failing_decode_ends_the_batch_and_the_thread_goes_on(bench: Callable[..., Bench]) -> None:
    one = bench()
    failing = one.sequence([12], new=5)  # its own second token is 13
    one.run(failing)
    assert failing.failure == "RuntimeError: thirteen"
    assert failing.output_ids == [13]
    assert one.scheduler.running == []
    healthy = one.sequence([20])
    one.run(healthy)
    assert healthy.output_ids == [21]


def test_a_listener_that_fails_does_not_stop_the_thread(bench: Callable[..., Bench]) -> None:
    one = bench()

    def gone(_: Sequence, __: int) -> None:
        raise RuntimeError("event loop is closed")

    sequence = one.sequence([20])
    sequence.notify = gone
    one.scheduler.submit([sequence])
    later = one.sequence([30])
    one.run(later)
    assert (sequence.output_ids, later.output_ids) == ([21], [31])


def test_a_cancelled_request_stops_decoding_and_its_waiting_group_never_starts(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    one.model.go.clear()
    running, waiting = one.sequence([20], new=100_000), one.sequence([30])
    one.scheduler.submit([running])
    assert one.model.entered.wait(5)
    one.scheduler.submit([waiting])
    one.scheduler.cancel([running, waiting])
    one.model.go.set()
    last = one.sequence([40])
    one.run(last)
    assert one.model.rows()[-1] == 1
    assert len(one.model.rows()) <= 3  # the first extend, at most one decode, the last extend
    assert (running.finish, waiting.finish, waiting.output_ids) == (None, None, [])


def test_a_flush_empties_cache_and_allocator_when_idle(bench: Callable[..., Bench]) -> None:
    one = bench()
    block = one.pool.take((256,), np.float32)
    one.pool.give(block)
    resends(one, 193, 1)
    assert one.scheduler.flush().result(5) is True
    assert one.scheduler.cache.tokens == 0
    assert one.pool.take((256,), np.float32).base is not block.base
    assert resends(one, 193, 2) == [0, 192]


def test_a_flush_is_refused_while_something_runs_and_waits_within_its_timeout(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    one.model.go.clear()
    sequence = one.sequence(ids(65), new=40)
    one.scheduler.submit([sequence])
    assert one.model.entered.wait(5)
    refused, patient = one.scheduler.flush(), one.scheduler.flush(timeout=10)
    one.model.go.set()
    assert refused.result(5) is False
    assert patient.result(5) is True
    assert sequence.finish is not None
    assert one.scheduler.cache.tokens == 0


def test_seeded_requests_draw_the_same_whatever_came_before(bench: Callable[..., Bench]) -> None:
    one, other = bench().scheduler, bench().scheduler
    other.rng(None)
    assert one.rng(5).random() == other.rng(5).random()
    assert one.rng(-1).random() == other.rng(-1).random()
    assert one.rng(None).random() != other.rng(None).random()


def test_totals_count_tokens(bench: Callable[..., Bench]) -> None:
    one = bench()
    resends(one, 193, 2)
    totals = one.scheduler.totals
    assert (totals.requests, totals.prompt_tokens, totals.cached_tokens) == (2, 386, 192)
    assert totals.generation_tokens == 2
