"""One send against its cold one, where a single send must do without a rate or a distribution of others."""

import math

from fidelity.compare import compare_first_token
from fidelity.observations import Answer
from fidelity.scoring import HARD, SURE


def corrupt_reason(
    cold: Answer, other: Answer, near_tie: float, cold_rules: tuple[str, ...] | None = None
) -> str:
    """Why `other` is corrupt beyond what rounding explains, or empty: a broken rule, a token that is off the
    cold answer's list or HARD nats below its first one, or the cold token's logprob moved by more than that.
    `cold_rules` as in `compare_first_token`."""
    agreement = compare_first_token(cold, other, near_tie, cold_rules)
    if agreement.kind == "broken":
        return agreement.rules[0]
    if agreement.kind == "off-list" or (agreement.kind == "hard flip" and agreement.regret > HARD):
        return agreement.kind
    moved = token_move(cold, other)
    return f"logprob moved {moved:.1f} nat" if moved > HARD else ""


def alone_is_no_proof(cold: Answer, other: Answer, near_tie: float) -> bool:
    """Is what makes `other` corrupt a move that a noisy server makes once in hundreds of sends: finite
    numbers, and neither the flip nor the move of the logprob beyond SURE nats?"""
    agreement = compare_first_token(cold, other, near_tie)
    if agreement.kind not in ("same", "near-tie", "hard flip"):
        return False
    moved = token_move(cold, other)
    return agreement.regret <= SURE and moved <= SURE


def token_move(cold: Answer, other: Answer) -> float:
    """|delta logprob| in nats of the cold answer's token in the other's distribution, at least, where that
    does not list it; NaN where one of the answers cannot be read."""
    if not (cold.output_ids and cold.top and other.top and other.top[0]):
        return math.nan
    if cold.mismatched or other.mismatched:
        return math.nan
    token = cold.output_ids[0]
    own = dict(cold.top[0]).get(token)
    if own is None:
        return math.nan
    known = dict(other.top[0])
    known |= dict(other.asked[0]) if other.asked else {}
    if token in known:
        return abs(own - known[token])
    return max(own - min(known.values()), 0.0)
