"""Sending for one arm: each request is recorded whole before the next one leaves."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fidelity.engines import sglang
from fidelity.engines.facts import ServerFacts
from fidelity.engines.sglang import Request
from fidelity.errors import UnreachableError
from fidelity.observations import Observation, Recorder
from fidelity.prompts.tokenizers import check_ids
from fidelity.servers.running import RunningServer


class OutOfTimeError(Exception):
    """The plan's --max-minutes are over."""


class FailedRequestError(Exception):
    """A measured request got no usable answer; its group starts again in a new namespace."""


@dataclass
class Session:
    """One arm's channel to its server. `deadline` is on time.monotonic's clock, None for no limit."""

    arm: str
    run_id: str
    server: RunningServer
    facts: ServerFacts
    recorder: Recorder
    next_order: Callable[[], int]
    vocab_size: int | None = None
    deadline: float | None = None
    _numbers: int = 0

    def next_number(self) -> int:
        """A number used once in this session, for namespaces that are never sent to again."""
        self._numbers += 1
        return self._numbers

    def namespace(self, *parts: object) -> str:
        """A prefix-cache namespace that no other send of any run shares."""
        return "/".join((self.run_id, self.arm, *map(str, parts)))

    def send(self, request: Request, observation: Callable[..., Observation]) -> Observation:
        """Send alone, record, return. `observation` makes the record from (order, sent_at, answer).

        Raises FailedRequestError after recording an answer that cannot be used, UnreachableError when the
        server is gone, OutOfTimeError, NotWhatWasAskedError for ids outside the vocabulary.
        """
        return self._send([request], [observation])[0]

    def send_batch(
        self, requests: Sequence[Request], observations: Sequence[Callable[..., Observation]]
    ) -> list[Observation]:
        """Send as one list-valued request; otherwise as `send`."""
        return self._send(requests, observations)

    def _send(
        self, requests: Sequence[Request], makers: Sequence[Callable[..., Observation]]
    ) -> list[Observation]:
        for request in requests:
            check_ids(list(request.input_ids), self.vocab_size)
        timeout = self._time_left()
        sent_at = time.time()
        if len(requests) == 1:
            answers = [sglang.generate(self.server.client, requests[0], timeout)]
        else:
            answers = sglang.generate_batch(self.server.client, requests, timeout)
        records = []
        for maker, answer in zip(makers, answers, strict=False):
            record = maker(order=self.next_order(), sent_at=sent_at, answer=answer)
            self.recorder.add(record)
            records.append(record)
        self._check(records, len(requests))
        return records

    def _check(self, records: list[Observation], wanted: int) -> None:
        failed = [record.answer for record in records if record.answer.failed]
        if not failed and len(records) == wanted:
            return
        if failed and failed[0].status == 0:
            self._time_left()
            died = self.server.died()
            if died or not sglang.answers(self.server.client):
                raise UnreachableError(
                    f"the server stopped answering ({failed[0].error}){': ' + died if died else ''}",
                    "what was recorded is kept; `fidelity run --resume FOLDER` goes on from there",
                )
        raise FailedRequestError(failed[0].error if failed else "fewer answers than requests")

    def _time_left(self) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        return left
