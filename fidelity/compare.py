"""Two answers to the same prompt: what is broken in one by itself, and how far its first token is from the
other's.

The absolute rules and the agreement classes follow public fault reports; docs/statistics.md lists them.
"""

import math
from dataclasses import dataclass

from fidelity.observations import Answer, Row

NEAR_TIE = 0.125
"""nats: one bf16 step of a logit in [16, 32); a flip within it is a near-tie, not corruption."""

RUN_LENGTH = 8
FLAT_ENTRIES = 5
FLAT_SPREAD = 1e-4
NAN_FACES = ("null", "nan", "inf", "http nan", "finish nan")
"""Faces that mean NaN or +inf anywhere in an answer; the clamped ones count only on the emitted token."""


@dataclass(frozen=True)
class Agreement:
    """`kind`: same, near-tie, hard flip, off-list, broken or unreadable; `regret` in nats (a lower bound
    when off-list)."""

    kind: str
    regret: float
    rules: tuple[str, ...] = ()

    @property
    def corrupt(self) -> bool:
        return self.kind in ("hard flip", "off-list", "broken")


def broken_rules(answer: Answer, near_tie: float = NEAR_TIE) -> tuple[str, ...]:
    """Absolute rules that this answer breaks by itself, worst first; empty when none.

    Applies to an answer asked for at temperature 0 with logprobs.
    """
    found = []
    nan = {face: answer.faces[face] for face in NAN_FACES if answer.faces.get(face)}
    if nan:
        found.append("NaN: " + ", ".join(f"{count} {face}" for face, count in nan.items()))
    if any(not math.isfinite(lp) or lp <= -9999 for lp in answer.logprobs) and not nan:
        found.append("the emitted token's logprob is not a number")
    if any(_is_flat(row) for row in answer.top):
        found.append("flat row")
    run = longest_run(answer.output_ids)
    if run >= RUN_LENGTH:
        found.append(f"run of one id ({run})")
    if not nan:
        found += _impossible(answer, near_tie)
    return tuple(found)


def longest_run(ids: list[int]) -> int:
    """Length of the longest run of one repeated id."""
    best = current = 0
    last: int | None = None
    for token in ids:
        current = current + 1 if token == last else 1
        last = token
        best = max(best, current)
    return best


def compare_first_token(cold: Answer, other: Answer, near_tie: float = NEAR_TIE) -> Agreement:
    """Agreement class of `other`'s first token against `cold`'s distribution.

    Reference regret d = ln P(top1) - ln P(y) with P the cold distribution and y the other's token; y outside
    the cold top-k is off-list with d >= ln P(top1) - ln P(k-th) (the tail is censored), and a near-tie never.
    A broken rule of `other` comes before any comparison; a cold answer that is broken or empty leaves
    nothing to compare with: *unreadable*.
    """
    rules = broken_rules(other, near_tie)
    if rules:
        return Agreement("broken", math.inf, rules)
    if not (_readable(cold) and _readable(other)) or broken_rules(cold, near_tie):
        return Agreement("unreadable", math.nan)
    row = sorted(cold.top[0], key=lambda pair: -pair[1])
    token = other.output_ids[0]
    top_id, top_logprob = row[0]
    if token in (cold.output_ids[0], top_id):
        return Agreement("same", 0.0)
    known = dict(row)
    if token in known:
        regret = top_logprob - known[token]
        return Agreement("hard flip" if not regret <= near_tie else "near-tie", regret)
    return Agreement("off-list", top_logprob - row[-1][1])


def top_probability(answer: Answer) -> float:
    """Probability of the most likely first token; NaN when the answer has none."""
    if not answer.top or not answer.top[0]:
        return math.nan
    logprobs = [value for _, value in answer.top[0]]
    if not all(math.isfinite(value) for value in logprobs):
        return math.nan
    return math.exp(max(logprobs))


def _readable(answer: Answer) -> bool:
    return bool(answer.output_ids and answer.top and answer.top[0])


def _is_flat(row: Row) -> bool:
    values = [value for _, value in row]
    if len(values) < FLAT_ENTRIES or not all(math.isfinite(value) for value in values):
        return False
    return max(values) - min(values) <= FLAT_SPREAD


def _impossible(answer: Answer, near_tie: float) -> list[str]:
    found = []
    for position, row in enumerate(answer.top):
        values = [value for _, value in row]
        if not all(math.isfinite(value) for value in values):
            continue
        if (
            any(value > 1e-3 for value in values)
            or math.fsum(math.exp(min(v, 1.0)) for v in values) > 1 + 1e-3
        ):
            found.append(f"probabilities above 1 at output token {position}")
        elif position < len(answer.output_ids) and position < len(answer.logprobs) and values:
            below = max(values) - answer.logprobs[position]
            if not below <= near_tie:
                found.append(f"output token {position} is {below:.2f} nat below the top one at temperature 0")
    return found
