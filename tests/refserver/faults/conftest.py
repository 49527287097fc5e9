"""A real engine per fault, and what its answers are worth: whole distributions, compared by JSD."""

import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from tokenizers import Tokenizer

from fidelity.refserver.logprobs import Wanted
from fidelity.refserver.requests import Request
from fidelity.refserver.sampling import Sampling
from fidelity.refserver.sequence import Sequence
from fidelity.refserver.service import Service, start
from fidelity.refserver.settings import Settings
from fidelity.refserver.training.corpus import load_bank
from fidelity.refserver.training.evaluate import fit
from fidelity.refserver.weights import PROFILES

HEALTHY = 1e-9  # nats: a healthy hit against cold is below 1e-11
VISIBLE = 1e-3
PROMPTS = 8


class Engine:
    """A running engine; `send` and `batch` ask for whole distributions, in a fresh namespace by default."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.vocabulary = service.weights.config.vocab_size
        self._names = count()

    def name(self) -> str:
        return f"own-{next(self._names)}"

    def send(self, ids: Items[int], namespace: str | None = None, new: int = 1) -> Sequence:
        return self.batch([ids], [self.name() if namespace is None else namespace], new)[0]

    def batch(
        self, prompts: Items[Items[int]], namespaces: Items[str] | None = None, new: int = 1
    ) -> list[Sequence]:
        """All in one extend, then decoded together."""
        names = [self.name() for _ in prompts] if namespaces is None else namespaces
        sequences = [self.sequence(ids, name, new) for ids, name in zip(prompts, names, strict=True)]
        self.service.scheduler.submit([sequence for sequence, _ in sequences])
        for _, done in sequences:
            assert done.wait(20), "not finished"
        return [sequence for sequence, _ in sequences]

    def pair(self, ids: Items[int], new: int = 1) -> tuple[Sequence, Sequence]:
        """A cold send and the hit that follows it."""
        namespace = self.name()
        cold, hit = (self.send(ids, namespace, new) for _ in range(2))
        assert (cold.cached_tokens, hit.cached_tokens > 0) == (0, True)
        return cold, hit

    def score(self, ids: Items[int], start: int) -> Sequence:
        """The prompt's own logprobs from a position on, and no new token."""
        sequence, done = self.sequence(ids, self.name(), 0)
        sequence.request = replace(sequence.request, prompt_from=start)
        self.service.scheduler.submit([sequence])
        assert done.wait(20), "not finished"
        return sequence

    def sequence(self, ids: Items[int], namespace: str, new: int) -> tuple[Sequence, threading.Event]:
        """A request for whole distributions, not yet sent, and what is set when it ends."""
        done = threading.Event()

        def notify(sequence: Sequence, _: int) -> None:
            if sequence.finish is not None:
                done.set()

        request = Request(
            np.asarray(ids, np.int64),
            Sampling(max_new_tokens=new, temperature=0, ignore_eos=True),
            namespace=namespace,
            wanted=Wanted(self.vocabulary),
        )
        return Sequence(request, np.random.default_rng(0), notify), done


@pytest.fixture(scope="module")
def engine() -> Iterator[Callable[..., Engine]]:
    """`engine("no-state", profile="quiz-kv", ...)`: an engine with this fault, started on first use."""
    running: dict[Settings, Engine] = {}

    def get(fault: str = "none", **fields: object) -> Engine:
        settings = replace(Settings(), fault=fault, **fields)  # type: ignore[arg-type]
        if settings not in running:
            running[settings] = Engine(start(settings))
        return running[settings]

    yield get
    for one in running.values():
        one.service.scheduler.stop()


@pytest.fixture(scope="session")
def prompts() -> Callable[..., list[list[int]]]:
    """`prompts(193, family="capital")`: prompts of exactly so many tokens that the profiles answer surely."""
    tokenizer = Tokenizer.from_file(str(PROFILES / "tokenizer.json"))
    bank = {family.name: family for family in load_bank()}

    def get(length: int, family: str = "capital", number: int = PROMPTS) -> list[list[int]]:
        return [fit(tokenizer, bank[family], item, length) for item in bank[family].items[:number]]

    return get


def row(sequence: Sequence, position: int = 0) -> np.ndarray:
    """The log distribution of an output position, [vocab]."""
    entries = sequence.output.top[position]
    assert entries is not None
    logprobs = np.empty(len(entries))
    logprobs[[token for _, token in entries]] = [logprob for logprob, _ in entries]
    return logprobs


@pytest.fixture(scope="session")
def distance(jsd) -> Callable[..., float]:
    """`distance(a, b, position=0)`: JSD in nats between two answers at an output position."""
    return lambda a, b, position=0: jsd(row(a, position), row(b, position))
