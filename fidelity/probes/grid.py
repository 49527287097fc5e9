"""The sends that find the cache grid of a server that does not tell it, each recorded under the role `grid`
and judged by nobody."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import Request
from fidelity.grid import BEYOND, CHAINS, LONGEST, Found, Send, discover, lengths_of
from fidelity.observations import Observation
from fidelity.probes.part import Part
from fidelity.probes.session import FailedRequestError, Session
from fidelity.prompts.counted import Counted
from fidelity.prompts.growth import filler
from fidelity.prompts.tokenizers import ChatTokenizer

PROBE = ROLE = "grid"
TOP_K = 1
ATTEMPTS = 3
"""Of each chain."""

PAD = " ok"
_TEXT = " ".join([filler(99)] * 7)
"""What prompts are cut from: long enough where each number is one token."""

PER_NUMBER = 2.0
"""Tokens that a number of a message is taken for until two lengths are known."""

CUT_COLD = (
    "a cold prefill is cut where its checkpoint is kept, so that a cold send and a hit of the same prompt "
    "run the same last step, and comparing them sees no fault of it"
)
MAY_CUT = (
    "the counts do not tell whether cold prefills are cut where a hit resumes; then cold and hit run the "
    "same last step, and comparing them sees no fault of it"
)


def part(facts: ServerFacts) -> Part:
    """What `find` sends, where the counts are told and something hits."""
    each = 3 if "ids" not in facts.lacks else 2
    return Part("cache grid (at most)", CHAINS * each, CHAINS * each * (LONGEST + BEYOND), CHAINS * each)


def find(session: Session, tokenizer: ChatTokenizer) -> Found:
    """Find the grid of the session's server, each send recorded. Raises as `Session.send`, but for a send
    that failed: then the grid is not found."""
    facts = session.facts
    cuts = "ids" not in facts.lacks
    ids = tokenizer.encode([{"role": "user", "content": _TEXT}]) if cuts else []
    sender = _Sender(session, ids[: LONGEST + BEYOND])
    try:
        return discover(sender.run_chain, cuts=cuts, shared=facts.salt or 0)
    except FailedRequestError as exc:
        return Found("failed", f"not found out: a send failed ({exc})", ())


def learned(facts: ServerFacts, found: Found) -> ServerFacts:
    """The facts with the grid that was found, and a note of what it rests on."""
    told = ", ".join(f"{one.cached} of {one.sent}" for one in found.sends if one.what != "cold")
    note = f"the grid of the cache, which the server does not tell: {found.says} (from the cache: {told})"
    facts = replace(facts, notes=(*facts.notes, note))
    if found.grid is not None and found.strategy is not None:
        facts = replace(facts, grid=found.grid, strategy=found.strategy, grid_known=True)
    if not found.may_cut or facts.cold_shares_step is not None:
        return facts
    why = CUT_COLD if found.strategy == "align" else MAY_CUT
    lacks = {**facts.lacks, "apart": why}
    return replace(facts, cold_shares_step=why, lacks=lacks, notes=(*facts.notes, why))


class _Sender:
    """`ids` are what prompts are cut from; without any, a prompt is a message of about the wanted length."""

    def __init__(self, session: Session, ids: list[int]) -> None:
        self.session, self.ids = session, ids
        self._counts: dict[tuple[int, int], int] = {}

    def run_chain(self, chain: int, length: int) -> list[Send]:
        """Begun again in a new namespace where a send fails. Raises as `Session.send`."""
        for _ in range(ATTEMPTS - 1):
            with suppress(FailedRequestError):
                return self._try(chain, length)
        return self._try(chain, length)

    def _try(self, chain: int, length: int) -> list[Send]:
        session, filling = self.session, self._filling(length)
        namespace = session.namespace(PROBE, session.next_number())
        rank = 0 if session.facts.dp > 1 else None
        told = []
        for what, tokens in lengths_of(length, cuts=bool(self.ids)).items():
            prompt = self.ids[:tokens] if self.ids else self._message(filling, tokens)
            request = Request(prompt, namespace, 1, top_k=TOP_K, dp_rank=rank, dp_key=session.facts.dp_key)
            maker = partial(
                Observation,
                arm=session.arm,
                probe=PROBE,
                role=ROLE,
                namespace=namespace,
                length=tokens,
                cell=f"chain {chain} {what}",
            )
            answer = session.send(request, maker).answer
            sent = answer.prompt_tokens or tokens
            self._counts[filling] = sent
            told.append(Send(chain, what, sent, answer.cached_tokens))
        return told

    def _message(self, filling: tuple[int, int], tokens: int) -> Counted:
        numbers, pads = filling
        return Counted([{"role": "user", "content": filler(numbers, PAD, pads)}], tokens)

    def _filling(self, tokens: int) -> tuple[int, int]:
        """Numbers and pads of a message of about so many tokens, by those that were sent before."""
        if not self._counts:
            return round(tokens / PER_NUMBER), 0
        (near, pads), count = min(self._counts.items(), key=lambda one: abs(one[1] - tokens))
        others = [
            (abs(n - near), abs(c - p - count + pads)) for (n, p), c in self._counts.items() if n != near
        ]
        apart, more = min(others, default=(near, count - pads))
        each = max(more / apart, 0.5)
        wanted = tokens - count + pads
        numbers = max(near + math.floor(wanted / each), 2)
        return numbers, max(round(wanted - (numbers - near) * each), 0) if numbers > 2 else 0
