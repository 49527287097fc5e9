"""What every probe works with: one visit to one arm's server, and the ways to send within it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import Request
from fidelity.events import Corruption, Event, Sent, Skipped, Warning
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell
from fidelity.probes.session import FailedRequestError, Session
from fidelity.prompting import PromptSource


class StoppedAtProofError(Exception):
    """--fail-fast: the first corrupt send is recorded."""


@dataclass
class Probing:
    """One visit to one arm's server. `cells` are those of the resend probe; `earlier` are the arm's
    observations of this visit in earlier parts of a resumed run; `decides`: the arm is no baseline;
    `batches`: the server may get more than one request at once."""

    plan: RunPlan
    session: Session
    record: ArmRecord
    prompts: PromptSource
    cells: list[Cell]
    visit: int = 1
    decides: bool = True
    batches: bool = True
    earlier: list[Observation] = field(default_factory=list)

    @property
    def arm(self) -> str:
        return self.session.arm

    @property
    def facts(self) -> ServerFacts:
        return self.session.facts

    def warn(self, message: str) -> Warning:
        """Keep a warning with the arm, once, and make its event."""
        if message not in self.record.warnings:
            self.record.warnings.append(message)
        return Warning(self.arm, message)

    def request(self, ids: Sequence[int], namespace: str, max_new_tokens: int = 1, **options: Any) -> Request:
        """A request on one data-parallel rank, always the same; `options` are further fields of Request."""
        rank = 0 if self.facts.dp > 1 else None
        return Request(ids, namespace, max_new_tokens, dp_rank=rank, dp_key=self.facts.dp_key, **options)

    def send(
        self,
        probe: str,
        role: str,
        request: Request,
        *,
        cell: str,
        kind: str = "",
        prompt: str = "",
        group: str = "",
        attempt: int = 0,
        expected_cached: int | None = None,
        expected_text: str = "",
        watch: bool = False,
        keep_ids: bool = False,
    ) -> Observation:
        """Send one request alone and record it. Raises as `Session.send`."""

        def record(**what: object) -> Observation:
            return Observation(
                arm=self.arm,
                probe=probe,
                role=role,
                namespace=request.namespace,
                length=len(request.input_ids),
                cell=cell,
                kind=kind,
                prompt=prompt,
                group=group,
                attempt=attempt,
                expected_cached=expected_cached,
                expected_text=expected_text,
                input_ids=list(request.input_ids) if keep_ids else [],
                max_new_tokens=request.max_new_tokens,
                temperature=request.temperature,
                **what,  # type: ignore[arg-type]
            )

        return self.session.send(request, record, watch=watch)


def in_attempts(
    at: Probing,
    probe: str,
    group: str,
    complete: Callable[[Sequence[Observation]], bool],
    send: Callable[[int], Iterator[Observation | Corruption]],
    requests: int,
) -> Iterator[Event]:
    """Send one group by `send(attempt)`, unless an earlier part of the run holds it `complete`; a failed
    request ends it and it begins again in a new namespace, `resend.attempts` times at most. `requests` is the
    group's size. Raises StoppedAtProofError where the plan says so."""
    mine = [obs for obs in at.earlier if obs.probe == probe and obs.group == group and obs.role != "screen"]
    newest = max((obs.attempt for obs in mine), default=-1)
    if mine and complete([obs for obs in mine if obs.attempt == newest]):
        yield Skipped(at.arm, requests)
        return
    for attempt in range(newest + 1, newest + 1 + at.plan.resend.attempts):
        try:
            for what in send(attempt):
                if isinstance(what, Corruption):
                    yield what
                    # A baseline arm decides nothing: stopping there would leave the others unmeasured.
                    if at.plan.fail_fast and at.decides:
                        raise StoppedAtProofError
                else:
                    yield Sent(what)
            return
        except FailedRequestError as exc:
            yield at.warn(f"{group}: a request failed, started again: {exc}")
