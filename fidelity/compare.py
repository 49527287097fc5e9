"""Two answers to the same prompt: what is broken in one by itself, and how far its first token is from the
other's.

The absolute rules and the agreement classes follow public fault reports; docs/statistics.md lists them.
"""

import math
from dataclasses import dataclass

from fidelity.observations import Answer
from fidelity.stats.topk import ROUNDING

NEAR_TIE = 0.125
"""nats: one bf16 step of a logit in [16, 32); a flip within it is a near-tie, not corruption."""

TIE_ROUNDING = 1e-5
"""nats: by so much a bf16 step can come out larger between two single-precision logprobs."""

RUN_LENGTH = 8
CLAMPED = -9999.0
"""Nothing at or below it is a logprob: some servers write it for -inf or NaN."""
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


SAME = Agreement("same", 0.0)


def broken_rules(answer: Answer, near_tie: float = NEAR_TIE) -> tuple[str, ...]:
    """Absolute rules that this answer breaks by itself, worst first; empty when none.

    Applies to an answer asked for at temperature 0 with logprobs.
    """
    nan = {face: answer.faces[face] for face in NAN_FACES if answer.faces.get(face)} if answer.faces else {}
    found = ["NaN: " + ", ".join(f"{count} {face}" for face, count in nan.items())] if nan else []
    for logprob in () if nan else answer.logprobs:
        # Written so that NaN is caught too.
        if not CLAMPED < logprob < math.inf:
            found.append("the emitted token's logprob is not a number")
            break
    flat, impossible = False, []
    emitted = [] if nan or answer.mismatched else answer.logprobs[: len(answer.output_ids)]
    for position, row in enumerate(answer.top):
        # Probability zero is legal beside finite logprobs.
        values = [value for _, value in row if value != -math.inf]
        if not values or not math.isfinite(sum(values)):
            continue
        top = max(values)
        flat = flat or (len(values) >= FLAT_ENTRIES and top - min(values) <= FLAT_SPREAD)
        if nan:
            continue
        if top > ROUNDING or sum(map(math.exp, values)) > 1 + ROUNDING:
            impossible.append(f"probabilities above 1 (output token {position})")
        elif position < len(emitted) and not top - emitted[position] <= near_tie + TIE_ROUNDING:
            below = f"{top - emitted[position]:.2f} nat below"
            impossible.append(f"not the top token at temperature 0 ({below}, output token {position})")
    if flat:
        found.append("flat row")
    run = longest_run(answer.output_ids) if len(answer.output_ids) >= RUN_LENGTH else 0
    if run >= RUN_LENGTH:
        found.append(f"run of one id ({run})")
    return (*found, *impossible)


def longest_run(ids: list[int]) -> int:
    """Length of the longest run of one repeated id."""
    best = current = 0
    last: int | None = None
    for token in ids:
        current = current + 1 if token == last else 1
        last = token
        best = max(best, current)
    return best


def compare_first_token(
    cold: Answer, other: Answer, near_tie: float = NEAR_TIE, cold_rules: tuple[str, ...] | None = None
) -> Agreement:
    """Agreement class of `other`'s first token against `cold`'s distribution.

    Reference regret d = ln P(top1) - ln P(y) with P the cold distribution and y the other's token; y outside
    the cold top-k is off-list with d >= ln P(top1) - ln P(k-th) (the tail is censored), and a near-tie never.
    A broken rule of `other` comes before any comparison; a cold answer that is broken or empty leaves
    nothing to compare with: *unreadable*. `cold_rules` are those that the cold one breaks, where known.
    """
    rules = broken_rules(other, near_tie)
    if rules:
        return Agreement("broken", math.inf, rules)
    if not (_readable(cold) and _readable(other)):
        return Agreement("unreadable", math.nan)
    if broken_rules(cold, near_tie) if cold_rules is None else cold_rules:
        return Agreement("unreadable", math.nan)
    token = other.output_ids[0]
    if token == cold.output_ids[0]:
        return SAME
    row = cold.top[0]
    top_id, top_logprob = max(row, key=_logprob)
    if token == top_id:
        return SAME
    known = dict(row)
    if token in known:
        regret = top_logprob - known[token]
        return Agreement("near-tie" if regret <= near_tie + TIE_ROUNDING else "hard flip", regret)
    return Agreement("off-list", top_logprob - min(row, key=_logprob)[1])


def top_probability(answer: Answer) -> float:
    """Probability of the most likely first token; NaN when the answer has none."""
    if not answer.top or not answer.top[0]:
        return math.nan
    logprobs = [value for _, value in answer.top[0]]
    if not all(math.isfinite(value) for value in logprobs):
        return math.nan
    return math.exp(min(max(logprobs), 1.0))


def covered_mass(answer: Answer) -> float:
    """Probability that the first token's top logprobs cover (0 to 1); NaN when one is not finite."""
    logprobs = [value for _, value in answer.top[0]] if answer.top else []
    if not all(map(math.isfinite, logprobs)):
        return math.nan
    return math.fsum(math.exp(min(value, 1.0)) for value in logprobs)


def _readable(answer: Answer) -> bool:
    return bool(answer.output_ids and answer.top and answer.top[0]) and not answer.mismatched


def _logprob(pair: tuple[int, float]) -> float:
    return pair[1]
