"""What makes an answer corrupt, as a rule over the sends of one case. Each takes the sends in order, recorded
or of a replay, and says why, or nothing."""

import math
from collections.abc import Sequence

import numpy as np

from fidelity.compare import broken_rules, compare_first_token
from fidelity.engines.speculation import acceptance
from fidelity.judging import changes, exact
from fidelity.judging.draft import BROKEN
from fidelity.judging.rows import Judged, judge_send
from fidelity.observations import Answer, Observation
from fidelity.report.words import nats, why
from fidelity.scoring import corrupt_rules, score
from fidelity.single_send import corrupt_reason
from fidelity.stats.divergence import Divergence, divergence
from fidelity.stats.topk import TopK

AGAIN = 0.5
"""Of a move of the logprobs that flips no token, the share that counts as the same move again."""


def first_token(near_tie: float, sends: Sequence[Observation]) -> str:
    """The last send against the first, which is cold."""
    agreement = compare_first_token(sends[0].answer, sends[-1].answer, near_tie)
    return why(agreement) if agreement.corrupt else ""


def beyond_rounding(near_tie: float, sends: Sequence[Observation]) -> str:
    """As `first_token`, where a single send must decide."""
    return corrupt_reason(sends[0].answer, sends[-1].answer, near_tie)


def whole_answer(near_tie: float, sends: Sequence[Observation]) -> str:
    """The last send against the first, to the end of the answer."""
    cold, hit = sends[0].answer, sends[-1].answer
    rules = changes.hit_rules(cold, hit, near_tie)
    if rules:
        return "; ".join(rules)
    return "the answer changed" if changes.difference(cold, hit, near_tie) == changes.CHANGED else ""


def broken(near_tie: float, sends: Sequence[Observation]) -> str:
    """The last send by itself."""
    return "; ".join(broken_rules(sends[-1].answer, near_tie))


def wrong(sends: Sequence[Observation]) -> str:
    """The last send against the known answer."""
    text, known = (sends[-1].answer.text or "").strip(), sends[-1].expected_text.strip()
    return "" if text and known.startswith(text) else "the answer is not the known one, even cold"


def short_tail(min_tail: int, sends: Sequence[Observation]) -> str:
    """A guard that leaves no tail under `min_tail` tokens left one."""
    tail = sends[-1].tail_seen
    if tail is None or tail >= min_tail:
        return ""
    return f"{tail} tokens were recomputed, and the guard leaves no fewer than {min_tail}"


def generated(sends: Sequence[Observation]) -> str:
    """The first send against a clean prefill of it, which is the second where there is one."""
    return "; ".join(corrupt_rules(sends[0], sends[1] if len(sends) > 1 else None))


def row(prompt: str, role: str, near_tie: float, sends: Sequence[Observation]) -> str:
    """The row of a prompt, or the hit on what it left in the cache."""
    return "; ".join(judged_row(prompt, role, near_tie, sends).rules)


def judged_row(prompt: str, role: str, near_tie: float, sends: Sequence[Observation]) -> Judged:
    sent = next(send for send in sends if send.role == role and send.prompt == prompt)
    colds = {send.prompt: send for send in sends if send.role == "cold"}
    scored = next((send for send in sends if send.role == "rescore" and send.prompt == prompt), None)
    others = {name: cold for name, cold in colds.items() if name != prompt}
    return judge_send(sent, colds.get(prompt), others, near_tie, scored=scored)


def accepted(prompt: str, sends: Sequence[Observation]) -> str:
    """The first send's draft against the same prompt's in a batch."""
    kept = kept_alone(prompt, sends)
    if not kept < BROKEN:
        return ""
    return f"alone the draft keeps {kept:.2f} of the acceptance in a batch"


def kept_alone(prompt: str, sends: Sequence[Observation]) -> float:
    """Tokens a verification, alone over in a batch; NaN where they are not told."""
    rows = [send for send in sends if send.role == "row" and send.prompt == prompt]
    alone = acceptance(sends[0].answer)
    together = acceptance(rows[0].answer) if rows else None
    return math.nan if alone is None or together is None else alone.length / together.length


def unlike(trusted: Observation, near_tie: float, least: float, sends: Sequence[Observation]) -> str:
    """The last send's first token against a reference's for the same ids; logprobs at least `least` nats away
    count too."""
    agreement = compare_first_token(trusted.answer, sends[-1].answer, near_tie)
    if agreement.corrupt:
        return f"against the reference: {why(agreement)}"
    size = off(trusted, sends[-1])
    if size == 0 or size < least:
        return ""
    return f"the logprobs lie {nats(size)} nat from the reference's (mean over the ids that both told)"


def off(trusted: Observation, send: Observation) -> float:
    """Mean |delta logprob| of a first token, in nats; infinite where one of them is not told."""
    found = apart(trusted.answer, send.answer)
    return math.inf if found is None else found.moved


def drafts_less(trusted: Observation, near_tie: float, least: float, sends: Sequence[Observation]) -> str:
    """The last send's draft against a reference's for the same ids, of which `least` must be lost again."""
    kept = kept_of(trusted, sends[-1])
    if not kept < BROKEN or 1 - kept < least:
        return ""
    return f"the draft keeps {kept:.2f} of the acceptance in the reference"


def kept_of(trusted: Observation, send: Observation) -> float:
    """Tokens a verification, of the reference's; NaN where they are not told."""
    own, other = acceptance(send.answer), acceptance(trusted.answer)
    return math.nan if own is None or other is None else own.length / other.length


def identical(sends: Sequence[Observation]) -> str:
    """The last send's values against the first's, or a clean prefill's against the generated ones."""
    scored = sends[-1].role.startswith("rescore")
    first = sends[-2] if scored else sends[0]
    found = exact.scores(first, sends[-1]) if scored else exact.answers(first, sends[-1])
    return "" if found is None else f"not bit-identical: {found.words((first.role, sends[-1].role))}"


def moved(least: float, sends: Sequence[Observation]) -> str:
    """Logprobs at least `least` nats from the first send's, where no token flips."""
    size = distance(sends)
    if size == 0 or size < least:
        return ""
    return f"the logprobs moved by {nats(size)} nat (mean over the cold answer's ids)"


def distance(sends: Sequence[Observation]) -> float:
    """nats between the last send and the cold one; of a generated answer, the mean |delta logprob|."""
    if sends[-1].role.startswith("rescore") and len(sends) > 1:
        found = score(sends[0].answer, sends[1].answer)
        return math.inf if found is None else float(np.mean(np.abs(found.delta)))
    one = apart(sends[0].answer, sends[-1].answer)
    return math.inf if one is None else one.moved


def apart(cold: Answer, other: Answer) -> Divergence | None:
    """The first tokens' distributions; None where one is not told."""
    if not (cold.top and cold.top[0] and other.top and other.top[0]):
        return None
    asked = _top(other.asked[0]) if other.asked and other.asked[0] else None
    return divergence(_top(cold.top[0]), _top(other.top[0]), q_asked=asked)


def _top(pairs: Sequence[tuple[int, float]]) -> TopK:
    return TopK.of([token for token, _ in pairs], [value for _, value in pairs])
