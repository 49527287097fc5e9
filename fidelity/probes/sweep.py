"""The `sweep` probe: many tails and lengths, few prompts each, for a map of where the hits are corrupt.

At the first position every tail of one grid step and some past it, at the others a few; where the server
splits a prefill into chunks, the lengths around that. Each cell sends a prompt cold and then as a hit; past
the natural tail the hit follows a shorter seed or a second re-send (`plan_hit`).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fidelity.engines.facts import CHUNK, PROMPT_END, ServerFacts
from fidelity.engines.vacuity import SPARE
from fidelity.errors import LengthError
from fidelity.events import Corruption, Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.plan_probes import Resend
from fidelity.probes import screening
from fidelity.probes.cells import Cell, HitPlan, plan_hit
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.resend import Group, run_group

PROBE = "sweep"
TAILS = (1, 2, 3, 4, 5, 33)
"""Tails at the positions that are not mapped whole, besides one whole grid step."""

ANYWHERE = ("attention only", PROMPT_END)
"""Strategies whose grid, if any, is no map's unit."""

CHUNK_TAILS = (1, 2, 33)
"""Tails on both sides of the chunked-prefill size."""

LONGEST = 20_000
"""Tokens of the longest prompt that is sent: one chunk of the largest usual size and some more."""

ONE_HIT = Resend(hits=1)


@dataclass(frozen=True)
class Map:
    """`cells` by position and tail, and in words what the server or the length leaves out of the plan."""

    cells: tuple[Cell, ...]
    left_out: tuple[str, ...]


def run(at: Probing) -> Iterator[Event]:
    """Every cell, in an order by the seed, with prompts that the model is sure of as far as they fit."""
    chosen = choose(at.plan, at.facts)
    at.record.sweep = [(cell.position, cell.tail) for cell in chosen.cells]
    for message in chosen.left_out:
        yield at.warn(f"sweep: {message}")
    yield from screening.settle(at)
    first = [entry.id for entry in at.prompts.taken]
    pool = first + [entry.id for entry in at.prompts.order if entry.id not in first]
    order = list(enumerate(chosen.cells))
    random.Random(f"{at.plan.seed}/{PROBE}").shuffle(order)
    for number, cell in order:
        fitting = _fitting(at, cell, pool, len(first), number * at.plan.sweep.prompts)
        if len(fitting) < at.plan.sweep.prompts:
            yield at.warn(f"sweep: only {len(fitting)} prompts can be {cell.length} tokens long")
        for prompt in fitting:
            yield from _measure(at, cell, prompt)


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One for each position."""
    rows: dict[int, list[Cell]] = {}
    for cell in choose(plan, facts).cells:
        rows.setdefault(cell.position, []).append(cell)
    count = plan.sweep.prompts
    for position, row in rows.items():
        hows = [plan_hit(cell, facts, min_tail) for cell in row]
        sends = count * sum(map(_sends, hows))
        seeds = sum(how.seed_length * (_sends(how) - 2) for how in hows)
        tokens = count * (sum(2 * cell.length for cell in row) + seeds)
        yield Part(f"sweep from {position}", sends, tokens, sends)


def unfit(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    """Without a cache that an identical or a longer prompt can hit there is nothing to map."""
    if not facts.prefix_cache:
        return "the server's prefix cache is off"
    if facts.strategy == "no_buffer":
        return "the strategy no_buffer keeps no checkpoint at a chosen position"
    return None


def choose(plan: RunPlan, facts: ServerFacts) -> Map:
    """The cells of the plan on this server. Where the prefix cache has no checkpoints, its pages are taken in
    steps of about CHUNK tokens."""
    step = -(-CHUNK // facts.grid) * facts.grid if facts.strategy in ANYWHERE else facts.grid
    tails = {*TAILS, *range(1, (facts.fault_region or 0) + 2), step}
    first, *others = sorted(set(plan.sweep.multiples))
    pairs = {(first * step, tail) for tail in (*range(1, step + 1), *(step + n for n in plan.sweep.beyond))}
    pairs |= {(multiple * step, tail) for multiple in others for tail in tails}
    chunk, context = facts.raw.get("chunked_prefill_size"), facts.raw.get("context_length")
    room = context - SPARE if isinstance(context, int) and context > 0 else None
    if isinstance(chunk, int) and chunk > step and (room is None or chunk < room):
        pairs |= _around(chunk, step)
    most, why = LONGEST, f"longer than {LONGEST} tokens"
    if room is not None and room < LONGEST:
        most, why = room, f"the server's context is {context} tokens"
    kept = sorted(pair for pair in pairs if sum(pair) <= most)
    lost = sorted(sum(pair) for pair in pairs.difference(kept))
    left_out = [f"{len(lost)} cells of {lost[0]} to {lost[-1]} tokens are left out: {why}"] if lost else []
    return Map(tuple(_cell(position, tail) for position, tail in kept), tuple(left_out))


def _around(chunk: int, step: int) -> set[tuple[int, int]]:
    """(position, tail) at the grid points below and from the chunk size on, and one token around it."""
    below = (chunk - 1) // step * step
    pairs = {(position, tail) for position in (below, below + step) for tail in CHUNK_TAILS}
    for length in (chunk - 1, chunk, chunk + 1):
        tail = (length - 1) % step + 1
        pairs.add((length - tail, tail))
    return pairs


def _cell(position: int, tail: int) -> Cell:
    length = position + tail
    return Cell(f"L={length} tail={tail}", "suspect", length, tail, "the sweep takes every tail as a suspect")


def _sends(how: HitPlan) -> int:
    return 2 + (1 if how.own_namespace else how.primes)


def _fitting(at: Probing, cell: Cell, pool: Sequence[str], sure: int, start: int) -> list[str]:
    """Up to `sweep.prompts` of the pool that fit the cell: first the `sure` ones, in turn from cell to
    cell."""
    turn = start % sure if sure else 0
    found: list[str] = []
    for prompt in (*pool[turn:sure], *pool[:turn], *pool[sure:]):
        if len(found) == at.plan.sweep.prompts:
            break
        try:
            at.prompts.fit(prompt, cell.length)
        except LengthError:
            continue
        found.append(prompt)
    return found


def _measure(at: Probing, cell: Cell, prompt: str) -> Iterator[Event]:
    fitted = at.prompts.fit(prompt, cell.length)
    min_tail, near_tie = at.record.min_tail, at.plan.thresholds.near_tie
    how = plan_hit(cell, at.facts, min_tail)

    def send(attempt: int) -> Iterator[Observation | Corruption]:
        group = Group(prompt, fitted.answer, fitted.ids, cell, how, attempt=attempt, probe=PROBE, brief=True)
        return run_group(at.session, group, ONE_HIT, min_tail, near_tie)

    key = Group(prompt, fitted.answer, fitted.ids, cell, how).key
    yield from in_attempts(at, PROBE, key, _complete, send, _sends(how))


def _complete(sent: Sequence[Observation]) -> bool:
    good = [obs.role for obs in sent if not obs.answer.failed]
    return "cold" in good and "hit" in good
