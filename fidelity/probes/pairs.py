"""One prompt cold, cold again in another namespace (the floor), and served from the cache: for probes that
look at whole answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fidelity.engines.request import Request
from fidelity.observations import Observation
from fidelity.probes.cells import Cell, plan_hit
from fidelity.probes.prediction import CachePrediction
from fidelity.probes.probing import Probing


@dataclass
class Pair:
    """One prompt of a probe: `ids` and what the hit is to recompute of them (`resume`). `cell` is the
    condition it counts for, `options` are further fields of each Request."""

    at: Probing
    probe: str
    cell: str
    prompt: str
    expected_text: str
    ids: Sequence[int]
    resume: Cell
    tokens: int
    attempt: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    _caches: dict[str, CachePrediction] = field(default_factory=dict, repr=False)

    @property
    def group(self) -> str:
        return f"{self.cell}: {self.prompt}@{len(self.ids)}"

    def run(self, *, floor: bool, go_on: Callable[[Observation], bool]) -> Iterator[Observation]:
        """Send cold; unless that answer is not to `go_on` with, send cold2 (with `floor`), the seeds that the
        hit needs, and the hit. Raises as `Session.send`."""
        how = plan_hit(self.resume, self.at.facts, self.at.record.min_tail)
        cold = self._send("cold", "a")
        yield cold
        if not go_on(cold):
            return
        if floor:
            yield self._send("cold2", "b")
        prefix = how.seed_length < len(self.ids)
        purpose = "hit" if how.own_namespace or prefix else "a"
        if how.own_namespace or prefix:
            yield self._seed(purpose, how.seed_length)
        for _ in range(0 if how.own_namespace or prefix else how.primes):
            yield self._send("seed", purpose)
        yield self._send("hit", purpose)

    def _seed(self, purpose: str, length: int) -> Observation:
        """A prefix, sent as ids: what makes it a prefix of a chat is its tokens, not its messages."""
        namespace = self._namespace(purpose)
        self._predict(purpose, length)
        return self._record("seed", self.at.request(self.ids[:length], namespace), None)

    def _send(self, role: str, purpose: str) -> Observation:
        expected = self._predict(purpose, len(self.ids))
        request = self.at.request(self.ids, self._namespace(purpose), self.tokens, **self.options)
        return self._record(role, request, expected)

    def _record(self, role: str, request: Request, expected: int | None) -> Observation:
        return self.at.send(
            self.probe,
            role,
            request,
            cell=self.cell,
            kind=self.resume.kind,
            prompt=self.prompt,
            group=self.group,
            attempt=self.attempt,
            expected_cached=expected,
            expected_text=self.expected_text,
            watch=role == "hit",
            keep_ids=role == "cold",
        )

    def _predict(self, purpose: str, length: int) -> int:
        facts = self.at.facts
        fresh = CachePrediction(facts.grid, facts.strategy, self.at.record.min_tail)
        return self._caches.setdefault(purpose, fresh).send(length)

    def _namespace(self, purpose: str) -> str:
        return self.at.session.namespace(self.probe, self.group, self.attempt, purpose)


def attempt_of(pair: Pair, attempt: int) -> Pair:
    """The same prompt, begun again in new namespaces."""
    return replace(pair, attempt=attempt, _caches={})
