"""Two whole answers to one prompt: are they the same to the user, and where do they part?"""

import json
from collections.abc import Sequence
from itertools import zip_longest

from fidelity.compare import TIE_ROUNDING, broken_rules
from fidelity.observations import Answer
from fidelity.scoring import HARD

SAME, NEAR_TIE, CHANGED = "same", "near-tie", "changed"


def hit_rules(cold: Answer, hit: Answer, near_tie: float) -> tuple[str, ...]:
    """Absolute rules that a hit breaks. A run of one id that the cold answer has too is the model's own."""
    runs = "run of one id"
    shared = any(rule.startswith(runs) for rule in broken_rules(cold, near_tie))
    return tuple(rule for rule in broken_rules(hit, near_tie) if not (shared and rule.startswith(runs)))


def difference(cold: Answer, other: Answer, near_tie: float) -> str:
    """SAME, NEAR_TIE or CHANGED: by the token ids, of a chat by its tool calls (else its text).

    Where two answers part, the same tokens stand before, so the cold logprobs there tell how much less
    likely the other's token was: up to `near_tie` nats for the first token, and HARD for a later one, it is a
    near-tie. Without logprobs every difference is a change.
    """
    if cold.tool_calls or other.tool_calls:
        return SAME if _calls(cold) == _calls(other) else CHANGED
    if not (cold.output_ids or other.output_ids):
        return SAME if cold.text == other.text else CHANGED
    place = parts_at(cold.output_ids, other.output_ids)
    if place is None:
        return SAME
    row = dict(cold.top[place]) if place < len(cold.top) else {}
    token = other.output_ids[place] if place < len(other.output_ids) else None
    if token not in row or cold.mismatched:
        return CHANGED
    regret = max(row.values()) - row[token]
    return NEAR_TIE if regret <= (near_tie if place == 0 else HARD) + TIE_ROUNDING else CHANGED


def parts_at(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position (from 0) at which two lists of ids differ, their ends included; None where they do
    not."""
    pairs = enumerate(zip_longest(one, other))
    return next((place for place, (a, b) in pairs if a != b), None)


def re_anchored(cold: Sequence[int], other: Sequence[int]) -> bool:
    """Does an answer that parted from the cold one end as it does, position by position: its second half?"""
    half = len(cold) // 2
    return len(cold) > 1 and list(cold[half:]) == list(other[half:])


def parses(answer: Answer, *, calls: bool) -> bool:
    """Is the answer one JSON object or list; with `calls`, does it hold tool calls whose arguments all are
    objects?"""
    if calls:
        return bool(answer.tool_calls) and all(
            isinstance(_json(call["arguments"]), dict) for call in answer.tool_calls
        )
    return isinstance(_json(answer.text or ""), dict | list)


def right(answer: Answer, expected: str) -> bool:
    """Does the answer begin as the known one does? Of tool calls, the arguments are the answer."""
    text = answer.tool_calls[0]["arguments"] if answer.tool_calls else answer.text or ""
    text, wanted = text.strip(), expected.strip()
    return bool(text) and (wanted.startswith(text) or text.startswith(wanted))


def ranking(answer: Answer) -> list[tuple[int, float]]:
    """The (id, logprob in nats) that were asked for at the first token, likeliest first; empty where one is
    not told."""
    row = answer.asked[0] if answer.asked else []
    return [] if any(value != value for _, value in row) else sorted(row, key=lambda pair: -pair[1])


def margin(answer: Answer) -> float | None:
    """nats between the two likeliest of them."""
    ranked = ranking(answer)
    return ranked[0][1] - ranked[1][1] if len(ranked) > 1 else None


def _calls(answer: Answer) -> list[tuple[str, str]]:
    return [(call["name"], _canonical(call["arguments"])) for call in answer.tool_calls]


def _canonical(text: str) -> str:
    found = _json(text)
    return text if found is None else json.dumps(found, sort_keys=True)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
