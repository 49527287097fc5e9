"""One row of a batch, or one hit after it, against its own cold answer and those of the other rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fidelity.compare import Agreement, compare_first_token
from fidelity.engines.formed import OVERLAP, SPLIT, UNTOLD
from fidelity.evidence import MISMATCHED, not_cold
from fidelity.observations import Answer, Observation
from fidelity.scoring import corrupt_rules
from fidelity.stats.divergence import Divergence, divergence
from fidelity.stats.topk import TopK


@dataclass(frozen=True)
class Judged:
    """`rules` say why it is corrupt, worst first; `missed` why it proves nothing about its path. `jsd` (a
    lower bound) and `moved` (mean |delta logprob| over the cold answer's ids) of its first token against its
    cold one, in nats; NaN where they cannot be told. `formed` is what shows that its batch ran as one. Of an
    attempt that is not the `last`, only what is corrupt counts."""

    sent: Observation
    cold: Observation | None
    agreement: Agreement
    rules: tuple[str, ...]
    missed: str | None
    jsd: float
    moved: float
    formed: str
    last: bool = True

    @property
    def assumed(self) -> bool:
        """Nothing but the one request lets one believe that the rows ran together."""
        return self.formed in (OVERLAP, UNTOLD)


def groups(
    observations: Sequence[Observation], prefix: str
) -> Iterator[tuple[dict[str, list[Observation]], bool]]:
    """The sends of each attempt at each group whose name begins so, by role, and whether it is the last."""
    found: dict[str, dict[int, dict[str, list[Observation]]]] = {}
    for obs in observations:
        if obs.group.startswith(prefix):
            attempts = found.setdefault(obs.group, {})
            attempts.setdefault(obs.attempt, {}).setdefault(obs.role, []).append(obs)
    for attempts in found.values():
        for attempt, roles in attempts.items():
            yield roles, attempt == max(attempts)


def judge_send(
    sent: Observation,
    cold: Observation | None,
    others: Mapping[str, Observation],
    near_tie: float,
    *,
    scored: Observation | None = None,
    last: bool = True,
) -> Judged:
    """`others` are the cold answers of the other rows, by prompt; `scored` the clean prefill of this
    answer."""
    agreement = Agreement("unreadable", math.nan)
    jsd = moved = math.nan
    if cold is not None:
        agreement = compare_first_token(cold.answer, sent.answer, near_tie)
        found = _divergence(cold.answer, sent.answer)
        jsd, moved = (found.jsd_lower, found.moved) if found is not None else (jsd, moved)
    rules = [*agreement.rules]
    if agreement.corrupt and not rules:
        rules.append(f"first token is not the cold answer's ({agreement.kind}, {agreement.regret:.1f} nat)")
    rules += [rule for rule in corrupt_rules(sent, scored) if rule not in rules]
    crossed = None if cold is None else _whose(sent, cold, others)
    if crossed is not None:
        rules.insert(0, f"cross-talk: it answers as the row of {crossed}")
    missed = _missed(sent, cold, agreement)
    return Judged(sent, cold, agreement, tuple(rules), missed, jsd, moved, sent.formed, last)


def _missed(sent: Observation, cold: Observation | None, agreement: Agreement) -> str | None:
    if sent.answer.failed:
        return "the request failed"
    if cold is None:
        return "there is no cold answer to compare with"
    if reason := not_cold(cold):
        return reason
    if sent.answer.error is not None:
        return None  # a NaN that came as an HTTP error: an answer, without counts
    if sent.answer.mismatched:
        return MISMATCHED
    if sent.formed.startswith(SPLIT):
        return f"the server ran the rows as {sent.formed.removeprefix(SPLIT).strip()}"
    if sent.alone is False:
        return "other requests ran at the same time"
    cached, wanted = sent.answer.cached_tokens, sent.expected_cached
    if cached is None:
        return "the server reports no cached_tokens"
    if cached != wanted:
        return f"{'' if cached else 'no hit: '}cached_tokens {cached} instead of {wanted}"
    if sent.answer.prompt_tokens != sent.length:
        return f"prompt_tokens {sent.answer.prompt_tokens} instead of {sent.length}"
    if sent.answer.dp_rank != cold.answer.dp_rank:
        return f"DP rank {sent.answer.dp_rank} answered, and rank {cold.answer.dp_rank} the cold send"
    if sent.answer.replica != cold.answer.replica:
        return f"replica {sent.answer.replica} answered, and {cold.answer.replica} the cold send"
    return "no readable answer to compare" if agreement.kind == "unreadable" else None


def _whose(sent: Observation, cold: Observation, others: Mapping[str, Observation]) -> str | None:
    """The prompt whose output a row has: the row begins with another token than its own cold answer does,
    and that is the other's first one, with a distribution nearer to the other's than to its own, or its text
    begins with the other's known answer."""
    token = _first(sent)
    if token is None or token in (_first(cold), _best(cold.answer)):
        return None
    own = _farthest(cold.answer, sent.answer)
    near = []
    for prompt, other in others.items():
        far = _farthest(other.answer, sent.answer)
        if _best(other.answer) == token and far < own:
            near.append((far, prompt))
    if near:
        return min(near)[1]
    text = (sent.answer.text or "").strip()
    begun = [
        (len(other.expected_text), prompt)
        for prompt, other in others.items()
        if other.expected_text and text.startswith(other.expected_text)
    ]
    if not begun or (cold.expected_text and text.startswith(cold.expected_text)):
        return None
    return max(begun)[1]


def _divergence(cold: Answer, sent: Answer) -> Divergence | None:
    if not (cold.top and cold.top[0] and sent.top and sent.top[0]):
        return None
    asked = _top(sent.asked[0]) if sent.asked and sent.asked[0] else None
    found = divergence(_top(cold.top[0]), _top(sent.top[0]), q_asked=asked)
    return found if math.isfinite(found.jsd_lower) else None


def _farthest(cold: Answer, sent: Answer) -> float:
    """The upper bound of the JSD: two lists without a common id have a lower bound of 0."""
    found = _divergence(cold, sent)
    return math.inf if found is None else found.jsd_upper


def _top(row: Sequence[tuple[int, float]]) -> TopK:
    return TopK.of([token for token, _ in row], [logprob for _, logprob in row])


def _first(sent: Observation) -> int | None:
    return sent.answer.output_ids[0] if sent.answer.output_ids else None


def _best(answer: Answer) -> int | None:
    return max(answer.top[0], key=lambda pair: pair[1])[0] if answer.top and answer.top[0] else None
