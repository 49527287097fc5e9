"""The ragged fill of the `batch` probe: prompts of several lengths put into the cache by one request, then
each hit alone.

Per prompt: `cold` alone (the reference) and `hit` after it in the same namespace (the path control: the same
tail, kept by a prefill of its own); then all prompts as one list-valued request into fresh namespaces (role
`fill`), and per prompt `ragged-hit`, alone. States that a prefill of several requests keeps for the wrong one
of them, or for a wrong token, show in these alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fidelity.compare import compare_first_token
from fidelity.engines.facts import CHUNK, ServerFacts
from fidelity.engines.formed import Witness
from fidelity.errors import LengthError
from fidelity.events import Corruption, Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import FAR_CONTROL, Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.rows import PROBE, Way, Where, find_way, most_rows, send_together, suspect_cell

ROWS, FILL = "ragged rows", "ragged fill"
"""The two cells: the rows of the fill themselves, and the hits on what it kept."""

_LENGTHS = 4
"""Distinct lengths, in turn."""


@dataclass(frozen=True)
class _Prompt:
    id: str
    answer: str
    ids: Sequence[int]
    way: Way


def run(at: Probing, witness: Witness, prompts: Sequence[str]) -> Iterator[Event]:
    """The fill and its hits, once; where no such hit can come about, the arm's record says why."""
    if not at.plan.batch.ragged:
        return
    chosen = list(_choose(at, prompts))
    if len(chosen) < 2:
        why = _why_none(at.plan, suspect_cell(at.cells), at.facts, at.record.min_tail)
        if why is None:
            yield at.warn(f"{PROBE} {FILL} needs two prompts, and the run has {len(chosen)} that fit")
            return
        at.record.skipped[f"{PROBE} {FILL}"] = why
        yield at.warn(f"{PROBE} {FILL} not applicable: {why}")
        return
    send = partial(_group, at, witness, chosen)
    yield from in_attempts(at, PROBE, FILL, partial(_complete, len(chosen)), send, 4 * len(chosen))


def parts(plan: RunPlan, facts: ServerFacts, cell: Cell, min_tail: int) -> Iterator[Part]:
    """The fill and its hits as one."""
    lengths = _lengths(plan, cell, facts)[: plan.prompts.count]
    if len(lengths) >= 2 and _why_none(plan, cell, facts, min_tail) is None:
        yield Part(f"batch {FILL}", 4 * len(lengths), 4 * sum(lengths), 4 * len(lengths))


def planned(plan: RunPlan, prompts: int) -> int:
    """Rows of the fill that the plan asks for, of so many prompts."""
    return min(plan.batch.ragged, prompts)


def _tail(facts: ServerFacts) -> int:
    """Tokens of a hit: more than the fault reaches in a batch of one."""
    return max(FAR_CONTROL, (facts.fault_region or 0) + 1)


def _lengths(plan: RunPlan, cell: Cell, facts: ServerFacts) -> list[int]:
    """The rows' lengths, no more than the server runs at once and takes in one prefill."""
    step = math.lcm(facts.grid, CHUNK)
    first = -(-cell.position // step)
    lengths = [step * (first + row % _LENGTHS) + _tail(facts) for row in range(plan.batch.ragged)]
    lengths = lengths[: most_rows(facts) or len(lengths)]
    chunk = facts.raw.get("chunked_prefill_size")
    if type(chunk) is int and chunk > 0:
        while sum(lengths) > chunk:
            lengths.pop()
    return lengths


def _way(length: int, facts: ServerFacts, min_tail: int) -> Way | None:
    """A way whose hit recomputes enough tokens to be no fault of small batches."""
    position = length - _tail(facts)
    way = find_way(length, position, facts, min_tail)
    return way if way is not None and way.sends == 1 and way.cached == position else None


def _why_none(plan: RunPlan, cell: Cell, facts: ServerFacts, min_tail: int) -> str | None:
    if not facts.prefix_cache:
        return "the server has no prefix cache"
    lengths = _lengths(plan, cell, facts)
    if len(lengths) < 2:
        return "the server does not take two such prompts in one prefill"
    if _way(lengths[0], facts, min_tail) is None:
        return f"no hit leaves a tail of {_tail(facts)} tokens on this server"
    return None


def _choose(at: Probing, prompts: Sequence[str]) -> Iterator[_Prompt]:
    lengths = _lengths(at.plan, suspect_cell(at.cells), at.facts)
    for prompt in prompts:
        if not lengths:
            return
        way = _way(lengths[0], at.facts, at.record.min_tail)
        try:
            fitted = at.prompts.fit(prompt, lengths[0])
        except LengthError:
            continue
        if way is not None:
            yield _Prompt(prompt, fitted.answer, fitted.ids, way)
        lengths = lengths[1:]


def _complete(count: int, sent: Sequence[Observation]) -> bool:
    return sum(obs.role == "ragged-hit" and not obs.answer.failed for obs in sent) == count


def _group(
    at: Probing, witness: Witness, prompts: Sequence[_Prompt], attempt: int
) -> Iterator[Observation | Corruption]:
    near_tie = at.plan.thresholds.near_tie
    top_k = max(at.prompts.top_k(one.id, at.plan.thresholds.slack) for one in prompts)
    space = partial(at.session.namespace, FILL, attempt)

    def send(role: str, one: _Prompt, namespace: str, cached: int | None, ask: Sequence[int]) -> Observation:
        ids = one.ids[: one.way.seed_length] if role == "seed" else one.ids
        return at.send(
            PROBE,
            role,
            at.request(ids, space(namespace, one.id), ask=ask, top_k=top_k),
            cell=FILL,
            kind="suspect",
            prompt=one.id,
            group=FILL,
            attempt=attempt,
            expected_cached=cached,
            expected_text=one.answer,
            watch=role == "ragged-hit",
            keep_ids=role == "cold",
        )

    colds: list[Observation] = []
    asks: list[list[int]] = []
    for one in prompts:
        cold = send("cold", one, "alone" if one.way.seed_length == len(one.ids) else "cold", 0, ())
        yield cold
        colds.append(cold)
        asks.append([token for token, _ in cold.answer.top[0]] if cold.answer.top else [])
        if one.way.seed_length < len(one.ids):
            yield send("seed", one, "alone", None, ())
        yield send("hit", one, "alone", one.way.cached, asks[-1])
    where = Where(ROWS, "suspect", FILL, attempt)
    requests = [
        at.request(one.ids[: one.way.seed_length], space("filled", one.id), ask=ask, top_k=top_k)
        for one, ask in zip(prompts, asks, strict=True)
    ]
    known = [(one.id, one.answer) for one in prompts]
    yield from send_together(at, witness, "fill", requests, known, [0] * len(prompts), where)
    for cold, one, ask in zip(colds, prompts, asks, strict=True):
        hit = send("ragged-hit", one, "filled", one.way.cached, ask)
        yield hit
        agreement = compare_first_token(cold.answer, hit.answer, near_tie)
        if agreement.corrupt:
            yield Corruption(cold, hit, agreement)
