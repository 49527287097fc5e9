"""The `checkpoint` probe: prefixes of one prompt, one to four tokens past one stored checkpoint.

The first tokens of a prompt up to one past the checkpoint fill the cache; then that prefix and those one, two
and three tokens longer are sent, each in a namespace filled anew, so that all of them resume from the same
stored state and KV. Wrong at one token and right at two speaks for the kernel that computes one token, wrong
at all of them for what is stored. Each is held against a cold send of the same ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fidelity.engines.facts import ServerFacts
from fidelity.errors import LengthError
from fidelity.events import Corruption, Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes import screening
from fidelity.probes.cells import THREAD_POSITION, Cell, HitPlan, plan_hit
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.resend import Group, run_group
from fidelity.probes.sweep import ONE_HIT, unfit

__all__ = ["PROBE", "cells_from", "parts", "run", "unfit"]

PROBE = "checkpoint"
TAILS = (1, 2, 3, 4)


def run(at: Probing) -> Iterator[Event]:
    """Every prompt at every tail, the longest prefix last: that is the whole prompt."""
    yield from screening.settle(at)
    chosen = cells_from(at.facts.grid)
    measured = 0
    for entry in at.prompts.taken:
        if measured == at.plan.checkpoint.prompts:
            return
        try:
            fitted = at.prompts.fit(entry.id, chosen[-1].length)
        except LengthError:
            continue
        measured += 1
        for cell in chosen:
            answer = fitted.answer if cell is chosen[-1] else ""
            ids = fitted.ids[: cell.length]
            how = _how(cell, at.facts)
            yield from _measure(at, Group(entry.id, answer, ids, cell, how, probe=PROBE, brief=True))


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """All prefixes as one."""
    chosen, count = cells_from(facts.grid), min(plan.checkpoint.prompts, plan.prompts.count)
    hows = [_how(cell, facts) for cell in chosen]
    seeds = [how.seed_length for how in hows if how.own_namespace or how.primes]
    sends = count * (2 * len(chosen) + len(seeds))
    tokens = count * (2 * sum(cell.length for cell in chosen) + sum(seeds))
    yield Part("same checkpoint", sends, tokens, sends)


def cells_from(grid: int) -> list[Cell]:
    """The prefixes of a server with checkpoints every `grid` tokens, shortest first."""
    position = -(-THREAD_POSITION // grid) * grid
    why = f"prefixes of one prompt resume from one state stored at {position}"
    return [Cell(f"from {position}: +{tail}", "suspect", position + tail, tail, why) for tail in TAILS]


def _how(cell: Cell, facts: ServerFacts) -> HitPlan:
    """The shortest prefix is what fills the cache: its own cold send does that for it. Where every length is
    a checkpoint, it would be resumed from one past it."""
    if facts.grid == 1:
        return plan_hit(cell, facts, 1)
    return HitPlan(cell.position + 1, 0, own_namespace=cell.tail > 1, reachable=True)


def _measure(at: Probing, group: Group) -> Iterator[Event]:
    def send(attempt: int) -> Iterator[Observation | Corruption]:
        tried = replace(group, attempt=attempt)
        return run_group(at.session, tried, ONE_HIT, at.record.min_tail, at.plan.thresholds.near_tie)

    size = 2 + (1 if group.how.own_namespace else group.how.primes)
    yield from in_attempts(at, PROBE, group.key, _complete, send, size)


def _complete(sent: Sequence[Observation]) -> bool:
    good = [obs.role for obs in sent if not obs.answer.failed]
    return "cold" in good and "hit" in good
