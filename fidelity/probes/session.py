"""Sending for one arm: each request is recorded whole before the next one leaves."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from fidelity.engines import openai_chat, replica, solitude, stream
from fidelity.engines.facts import ServerFacts
from fidelity.engines.registry import Engine, engine_of
from fidelity.engines.request import Request
from fidelity.engines.wire import check_allowed
from fidelity.errors import NotWhatWasAskedError, UnreachableError
from fidelity.observations import Observation, Recorder
from fidelity.prompts.tokenizers import check_ids
from fidelity.servers.running import RunningServer

WAIT = (429, 503)
"""HTTP statuses of a server that wants no more for now."""

PATIENCE = 6
"""Requests in a row that may end so, each begun again after the wait that it asked for, or that may get no
answer at all."""


class OutOfTimeError(Exception):
    """The plan's --max-minutes are over."""


class OutOfRequestsError(Exception):
    """The plan's --max-requests are sent."""


class FailedRequestError(Exception):
    """A measured request got no usable answer; its group starts again in a new namespace."""


@dataclass
class Budget:
    """Requests to /generate that may still be sent; None is any number."""

    left: int | None = None

    def take(self, count: int) -> None:
        """Raises OutOfRequestsError when that many are not left."""
        if self.left is not None:
            if count > self.left:
                raise OutOfRequestsError
            self.left -= count


@dataclass
class Session:
    """One arm's channel to its server. `deadline` is on time.monotonic's clock, None for no limit; `budget`
    is what the whole run may still send. `decode` gives the text of ids: where the vocabulary's size is not
    known, that is sent. `batches`: may requests be sent together? `visit` counts the starts of this
    server."""

    arm: str
    run_id: str
    server: RunningServer
    facts: ServerFacts
    recorder: Recorder
    next_order: Callable[[], int]
    vocab_size: int | None = None
    deadline: float | None = None
    budget: Budget = field(default_factory=Budget)
    decode: Callable[[tuple[int, ...]], str] | None = None
    batches: bool = False
    visit: int = 1
    _numbers: int = 0
    _refused: int = 0
    _used: set[str] = field(default_factory=set)
    _engine: Engine = field(init=False, repr=False)
    _watch: solitude.Watch = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._engine = engine_of(self.facts)
        self._watch = solitude.Watch(self.server.client, self._engine.look)

    def next_number(self) -> int:
        """A number used once in this session, for namespaces that are never sent to again."""
        self._numbers += 1
        return self._numbers

    def namespace(self, *parts: object) -> str:
        """A prefix-cache namespace that no other send of any run shares."""
        return "/".join((self.run_id, self.arm, *map(str, parts)))

    def send(
        self, request: Request, observation: Callable[..., Observation], *, watch: bool = False
    ) -> Observation:
        """Send alone, record, return. `observation` makes the record from (order, sent_at, answer) and, with
        `watch`, from (alone, computed): the server's load figures on both sides of the request.

        Raises FailedRequestError after recording an answer that cannot be used, UnreachableError when the
        server is gone, OutOfTimeError, OutOfRequestsError, PromptError for ids outside the vocabulary,
        NotWhatWasAskedError when the server reads a text as another number of tokens.
        """
        request = self._as_text(request)
        # A server that we started has no other clients; of those behind a router any may tell its load.
        blind = self.server.owned or replica.is_watched(self.server.client)
        before = self._watch.before() if watch and not blind else None
        (record,) = self._send([request], [observation], before)
        read = record.answer.prompt_tokens
        # Prompts cut anywhere: their last words may make other tokens by themselves.
        cut = record.role in ("seed", "grid")
        if request.text is not None and not cut and read not in (None, record.length):
            raise NotWhatWasAskedError(
                f"the server reads {read} tokens in the text of a prompt of {record.length}",
                "name its own tokenizer with --tokenizer: then the vocabulary is known and ids can be sent",
            )
        return record

    def send_batch(
        self,
        requests: Sequence[Request],
        observations: Sequence[Callable[..., Observation]],
        *,
        known_ids: bool = False,
    ) -> list[Observation]:
        """Send as one list-valued request, or streamed ones each by itself, all in flight at once; otherwise
        as `send`. What a text is read as does not matter here: these may be prompts cut anywhere.
        `known_ids`: the server has read each prompt before, alone, as just these tokens; a list of texts it
        would admit one by one."""
        sent = requests if known_ids else [self._as_text(request) for request in requests]
        for request in sent:
            check_ids(list(request.input_ids), self.vocab_size)
        return self._send(sent, observations)

    def _as_text(self, request: Request) -> Request:
        """As text where an id might be unknown to the server. Never what is scored: words of an answer can
        make other tokens than the answer's own, and those are ids that the server itself has given."""
        check_ids(list(request.input_ids), self.vocab_size)
        known = (
            self.vocab_size is not None or self.facts.refuses_unknown_ids or request.score_from is not None
        )
        if known or self.decode is None or request.chat is not None or "ids" in self.facts.lacks:
            return request
        return replace(request, text=self.decode(tuple(request.input_ids)))

    def _send(
        self,
        requests: Sequence[Request],
        makers: Sequence[Callable[..., Observation]],
        before: solitude.Load | None = None,
    ) -> list[Observation]:
        timeout = self._time_left()
        self.budget.take(len(requests))
        requests = [
            replace(one, fresh=one.namespace not in self._used, top_k=self._told(one.top_k))
            for one in requests
        ]
        self._used.update(one.namespace for one in requests)
        sent_at = time.time()
        if requests[0].stream:
            answers = stream.generate_all(self.server.client, requests, timeout)
        elif requests[0].chat is not None:
            answers = [openai_chat.complete(self.server.client, requests[0], timeout)]
        elif len(requests) == 1:
            answers = [self._engine.generate(self.server.client, requests[0], timeout)]
        else:
            answers = self._engine.generate_batch(self.server.client, requests, timeout)
        if len(answers) == 1 and not requests[0].stream:
            answers[0].replica = replica.last(self.server.client)
        for answer in answers:
            self._watch.sent(answer.computed)
        seen = asdict(self._watch.after(before)) if before is not None else {}
        records = []
        for maker, answer in zip(makers, answers, strict=False):
            record = maker(order=self.next_order(), sent_at=sent_at, answer=answer, **seen)
            record.visit, record.shared = self.visit, self.facts.salt or 0
            self.recorder.add(record)
            records.append(record)
        self._check(records, len(requests))
        return records

    def _check(self, records: list[Observation], wanted: int) -> None:
        failed = [record.answer for record in records if record.answer.failed]
        if not failed and len(records) == wanted:
            self._refused = 0
            return
        for answer in failed:
            check_allowed(answer.status, self.server.client)
        if failed and failed[0].status in (0, *WAIT):
            self._refused += 1
            if self._refused == PATIENCE:
                how = "refused" if failed[0].status else "did not answer"
                raise UnreachableError(
                    f"the server {how} {PATIENCE} requests in a row: {failed[0].error}",
                    "ask for fewer at a time with --rate; `fidelity run --resume FOLDER` goes on from there",
                )
        if failed and failed[0].status == 0:
            self._time_left()
            died = self.server.died(patience=5)
            if died or not self._engine.answers(self.server.client):
                raise UnreachableError(
                    f"the server stopped answering ({failed[0].error}){': ' + died if died else ''}",
                    "what was recorded is kept; `fidelity run --resume FOLDER` goes on from there",
                )
        raise FailedRequestError(failed[0].error if failed else "fewer answers than requests")

    def _told(self, top_k: int) -> int:
        """As many logprobs of a token as the server tells."""
        limit = self.facts.max_top_k
        return top_k if limit is None else min(top_k, limit)

    def _time_left(self) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        return left
