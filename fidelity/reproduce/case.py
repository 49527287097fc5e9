"""One way to show a corrupt answer again: the requests to send, in order, and the rule that judges them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import TOP_K, Request
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation

Rule = Callable[[Sequence[Observation]], str]
"""Why the answers to a case's requests, in order, are corrupt; empty when they are not."""

KEY = "$KEY"
"""Begins each request's namespace, and stands for one that nobody has used yet."""

_ASKING = ("resend", "sweep", "batch")
"""Probes whose hits ask for the logprobs of the cold answer's ids."""

_GREEDY_ROLES = ("decode", "sample", "row")
"""Roles whose answers go on past the end of a turn."""


@dataclass(frozen=True)
class Step:
    """One HTTP request; several `sends` are the rows of a list-valued one. `scores`: the place in the case's
    sends of the answer that this one holds behind its prompt, to be scored by a clean prefill."""

    sends: tuple[Observation, ...]
    requests: tuple[Request, ...]
    scores: int | None = None

    def after(self, answers: Sequence[Answer]) -> tuple[Request, ...]:
        """The requests to send once `answers` to the case's earlier sends are known."""
        if self.scores is None:
            return self.requests
        (request,) = self.requests
        prompt = request.input_ids[: request.score_from]
        return (replace(request, input_ids=[*prompt, *answers[self.scores].output_ids]),)


@dataclass(frozen=True)
class Case:
    """`worst`: how far its answer is off, the more the better it shows; with `by_worst` that comes before its
    length. `about` is its prompt, where that is not its last send's; `trusted` is a reference's answer to the
    ids of its last send, where the rule goes by that."""

    steps: tuple[Step, ...]
    rule: Rule
    worst: float = 0.0
    by_worst: bool = False
    about: str = ""
    trusted: Observation | None = None

    @property
    def sends(self) -> tuple[Observation, ...]:
        return tuple(send for step in self.steps for send in step.sends)

    @property
    def prompt(self) -> str:
        return self.about or self.sends[-1].prompt

    @property
    def why(self) -> str:
        """What the rule said of the recorded answers."""
        return self.rule(self.sends)

    @property
    def order(self) -> tuple[float, ...]:
        """Of two cases the one to show first has the lower: fewest requests, fewest prompt tokens, the
        worst, the first."""
        tokens = sum(send.length for send in self.sends)
        last = self.sends[-1].order
        if self.by_worst:
            return len(self.steps), -self.worst, tokens, last
        return len(self.steps), tokens, -self.worst, last


class NoIdsError(Exception):
    """The record does not keep the token ids of a send."""


def steps_of(
    sends: Iterable[Observation | Sequence[Observation]],
    colds: Sequence[Observation],
    record: ArmRecord,
) -> tuple[Step, ...]:
    """The requests of recorded sends, rows of one request together. `colds` keep the ids of prompts, by
    prompt; a `rescore` follows the answer that it scores. Raises NoIdsError."""
    by_prompt = {cold.prompt: cold for cold in colds}
    spaces: dict[str, str] = {}
    found: list[Step] = []
    before: list[Observation] = []
    for entry in sends:
        rows = (entry,) if isinstance(entry, Observation) else tuple(entry)
        scores = _scored(rows[0], before) if rows[0].role.startswith("rescore") else None
        requests = []
        for row in rows:
            # A letter for each namespace, in the order of their first use.
            name = spaces.setdefault(row.namespace, chr(ord("a") + len(spaces)))
            answer = None if scores is None else before[scores]
            requests.append(_request(row, by_prompt.get(row.prompt), answer, f"{KEY}/{name}", record))
        found.append(Step(rows, tuple(requests), scores))
        before += rows
    return tuple(found)


def _scored(rescore: Observation, before: Sequence[Observation]) -> int:
    places = [
        place
        for place, send in enumerate(before)
        if send.prompt == rescore.prompt and send.role in _GREEDY_ROLES
    ]
    if not places:
        raise NoIdsError
    return places[-1]


def _request(
    send: Observation,
    cold: Observation | None,
    scored: Observation | None,
    namespace: str,
    record: ArmRecord,
) -> Request:
    kept = send.input_ids or (cold.input_ids if cold is not None else [])
    ids = kept[: send.length]
    score_from = None
    if scored is not None:
        score_from = send.length - len(scored.answer.output_ids)
        ids = [*kept[:score_from], *scored.answer.output_ids]
    if not ids or len(ids) != send.length:
        raise NoIdsError
    facts = record.facts
    several = int(facts.get("dp", 1)) > 1
    return Request(
        ids,
        namespace,
        send.max_new_tokens,
        ask=_ask(send, cold),
        top_k=_top_k(send, cold),
        dp_rank=0 if several else None,
        dp_key=ServerFacts(facts.get("engine", ""), str(facts.get("version", "")), "").dp_key,
        temperature=send.temperature,
        ignore_eos=send.probe in ("decode", "draft", "batch") and send.role in _GREEDY_ROLES,
        score_from=score_from,
    )


def _ask(send: Observation, cold: Observation | None) -> list[int]:
    if send.answer.asked:
        return [token for token, _ in send.answer.asked[0]]
    # An answer that came as an error tells of no id that was asked for.
    lost = send.answer.error is not None and send.probe in _ASKING and send.role not in ("cold", "seed")
    if lost and cold is not None and cold.answer.top:
        return [token for token, _ in cold.answer.top[0]]
    return []


def _top_k(send: Observation, cold: Observation | None) -> int:
    if send.role.startswith("rescore"):
        return 1
    for one in (send, cold):
        if one is not None and one.answer.top and one.answer.top[0]:
            return len(one.answer.top[0])
    return TOP_K
