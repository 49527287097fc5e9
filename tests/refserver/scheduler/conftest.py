"""A scheduler on a model of one layer that counts its forwards and can be held."""

import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items

import numpy as np
import pytest

from fidelity.refserver.model import Recurrent, Result, Segment, State
from fidelity.refserver.pool import Pool
from fidelity.refserver.requests import Request
from fidelity.refserver.sampling import Sampling
from fidelity.refserver.scheduler import Scheduler
from fidelity.refserver.sequence import Sequence
from fidelity.refserver.settings import Settings

VOCABULARY = 300
EOS = 299


class Recorder:
    """A model whose next token is the last one plus one; id 13 makes it fail."""

    def __init__(self) -> None:
        self.forwards: list[list[Segment]] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()

    def empty(self) -> State:
        none = np.zeros((0, 1, 1), np.float32)
        return State(0, self._recurrent(0), (none,), (none,))

    def forward(self, segments: Items[Segment]) -> list[Result]:
        self.forwards.append(list(segments))
        self.entered.set()
        assert self.go.wait(10)
        if any(13 in segment.ids for segment in segments):
            raise RuntimeError("thirteen")
        return [self._result(segment) for segment in segments]

    def rows(self) -> list[int]:
        """Tokens of each forward so far."""
        return [sum(len(segment.ids) for segment in forward) for forward in self.forwards]

    def _result(self, segment: Segment) -> Result:
        length = segment.state.length + len(segment.ids)
        added = segment.ids.astype(np.float32).reshape(-1, 1, 1)
        grown = (np.concatenate([segment.state.keys[0], added]),)
        scored = segment.ids[-1:] if segment.logits_from is None else segment.ids
        logits = np.zeros((len(scored), VOCABULARY), np.float32)
        logits[np.arange(len(scored)), (scored + 1) % VOCABULARY] = 9
        checkpoints = {position: self._recurrent(position) for position in segment.checkpoints}
        state = State(length, self._recurrent(length), grown, grown)
        hidden = scored.astype(np.float32)[:, None]
        every = range(segment.state.length + 1, length + 1) if segment.every_state else ()
        return Result(logits, state, checkpoints, hidden, tuple(map(self._recurrent, every)))

    def _recurrent(self, position: int) -> Recurrent:
        return Recurrent((np.full((1, 1), position, np.float32),), (np.zeros((1, 1, 1), np.float32),))


class Guesses:
    """A draft head that is right for its first `right` tokens; what it was asked is kept."""

    def __init__(self, right: int) -> None:
        self.right = right
        self.asked: list[list[tuple[float, int]]] = []

    def propose(self, hidden: np.ndarray, ids: np.ndarray, steps: int) -> np.ndarray:
        self.asked.append([(float(h[0]), int(token)) for h, token in zip(hidden, ids, strict=True)])
        ahead = np.arange(1, steps + 1)
        return np.where(ahead <= self.right, (ids[:, None] + ahead) % VOCABULARY, 0)


class Bench:
    """A scheduler on a recorder, and a way to wait for what was submitted."""

    def __init__(self, draft: Guesses | None = None, **fields: object) -> None:
        self.model = Recorder()
        self.pool = Pool()
        settings = Settings(profile="random", **fields)  # type: ignore[arg-type]
        decode = lambda ids: "".join(chr(97 + token % 26) for token in ids)  # noqa: E731
        self.scheduler = Scheduler(self.model, self.pool, settings, decode, frozenset({EOS}), draft)  # type: ignore[arg-type]
        self._done: dict[Sequence, threading.Event] = {}

    def sequence(self, ids: list[int], new: int = 1, namespace: str = "", **params: object) -> Sequence:
        sampling = Sampling(max_new_tokens=new, temperature=0, **params)  # type: ignore[arg-type]
        request = Request(np.asarray(ids, np.int64), sampling, namespace=namespace)
        done = threading.Event()
        sequence = Sequence(request, np.random.default_rng(0), lambda _, __: done.set())
        self._done[sequence] = done
        return sequence

    def wait(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            assert self._done[sequence].wait(10), "not finished"

    def run(self, *sequences: Sequence) -> None:
        self.scheduler.submit(list(sequences))
        self.wait(*sequences)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(draft: Guesses | None = None, **fields: object) -> Bench:
        made.append(Bench(draft, **fields))
        return made[-1]

    yield make
    for one in made:
        one.model.go.set()
        one.scheduler.stop()


def ids(count: int, first: int = 20) -> list[int]:
    return [first + index % 200 for index in range(count)]


def resends(one: Bench, length: int, sends: int, first: int = 20) -> list[int]:
    """`cached_tokens` of identical sends of a prompt."""
    cached = []
    for _ in range(sends):
        sequence = one.sequence(ids(length, first))
        one.run(sequence)
        cached.append(sequence.cached_tokens)
    return cached
