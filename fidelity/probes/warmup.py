"""Warm-up: a fresh process hands out clean memory and cold kernels, and both hide what is looked for.

Recorded under the role `warmup` and judged by nobody.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from fidelity.engines.request import Request
from fidelity.observations import Observation
from fidelity.plan_probes import Resend
from fidelity.probes.session import FailedRequestError, Session

BATCH = 4
DECODE_STEPS = 64
FRACTIONS = (1.0, 0.35, 0.7, 0.5)


def size(resend: Resend, longest: int, *, batches: bool, cuts: bool = True) -> tuple[int, int, int]:
    """What `warm_up` sends for prompts of `longest` tokens, which `cuts` tells can be cut: requests, prompt
    tokens and new tokens."""
    decode = -(-resend.warmup_tokens // DECODE_STEPS)
    together = BATCH if batches and resend.warmup_sends else 0
    singles = [_cut(longest, number) if cuts else longest for number in range(resend.warmup_sends)]
    return (
        len(singles) + together + decode,
        sum(singles) + (together + decode) * longest,
        len(singles) + together + resend.warmup_tokens,
    )


def warm_up(session: Session, prompts: Sequence[Sequence[int]], resend: Resend) -> Iterator[Observation]:
    """Mixed lengths one by one, one batch (where that is allowed), then single-request decode.

    `prompts` are token ids whose first n are sent for several n. A failed warm-up send is recorded and
    passed over.
    """
    for number in range(resend.warmup_sends):
        ids = prompts[number % len(prompts)]
        cut = ids if "ids" in session.facts.lacks else ids[: _cut(len(ids), number)]
        yield from _send(session, [cut], number, 1)
    number = resend.warmup_sends
    if session.batches and number:
        yield from _send(session, [prompts[i % len(prompts)] for i in range(BATCH)], number, 1)
    for step in range(0, resend.warmup_tokens, DECODE_STEPS):
        number += 1
        ids = prompts[number % len(prompts)]
        yield from _send(session, [ids], number, min(DECODE_STEPS, resend.warmup_tokens - step))


def _cut(length: int, number: int) -> int:
    """The length of the n-th warm-up prompt, from one of `length` tokens."""
    return max(2, int(length * FRACTIONS[number % len(FRACTIONS)]))


def _send(
    session: Session, batch: Sequence[Sequence[int]], number: int, tokens: int
) -> Iterator[Observation]:
    requests, makers = [], []
    for row, ids in enumerate(batch):
        namespace = session.namespace("warmup", session.next_number(), row)
        requests.append(Request(ids, namespace, max_new_tokens=tokens))
        makers.append(
            partial(
                Observation,
                arm=session.arm,
                probe="warmup",
                role="warmup",
                namespace=namespace,
                length=len(ids),
                cell=f"warmup {number}",
                max_new_tokens=tokens,
            )
        )
    try:
        yield from session.send_batch(requests, makers)
    except FailedRequestError:
        return
