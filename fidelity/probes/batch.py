"""The `batch` probe: the same prompts as one list-valued request of 1, 2, 3 ... rows, every row looked at.

Per size and round, each prompt in a namespace of its own: `cold` alone, one token (the reference, and what
fills the cache), `seed` where the cache needs more before it serves; then all as one request of several rows
(role `row`), each a hit: so many rows of a short tail are one extend of few tokens, and each decode step
after it has one token of every row. `rescore` is a clean prefill of each row's prompt and answer. Where
nothing can be served from the cache the rows are cold, and only their decode steps are small batches.

The prompts' answers begin differently: they are the canaries by which another row's output is recognised.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from fidelity.compare import compare_first_token
from fidelity.engines.facts import ServerFacts
from fidelity.engines.formed import Witness
from fidelity.events import Corruption, Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes import ragged, screening
from fidelity.probes.cells import UNKNOWN_SUSPECTS, Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.rows import (
    PROBE,
    Way,
    Where,
    find_way,
    most_rows,
    order_canaries,
    send_together,
    suspect_cell,
)


def run(at: Probing) -> Iterator[Event]:
    """Each size, smallest first; then the ragged fill."""
    yield from screening.settle(at)
    prompts = order_canaries(at.prompts)
    witness = Witness(at.session.server)
    for name in [name for name in at.record.skipped if name.startswith(f"{PROBE} ")]:
        del at.record.skipped[name]
    for size in sorted(set(at.plan.batch.sizes)):
        unfit = _too_large(size, at.facts)
        if unfit is not None:
            at.record.skipped[f"{PROBE} {cell_name(size)}"] = unfit
            yield at.warn(f"{PROBE} {cell_name(size)} not applicable: {unfit}")
        elif size > len(prompts):
            yield at.warn(f"{PROBE} {cell_name(size)} needs {size} prompts, and the run has {len(prompts)}")
        else:
            for number in range(rounds(at.plan, size)):
                chosen = [prompts[(number * size + row) % len(prompts)] for row in range(size)]
                yield from _round(at, witness, chosen, number)
    yield from ragged.run(at, witness, prompts)


def unfit(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    """Why a server cannot take the probe."""
    return None if batches else "it may not be sent several requests at once (--allow-load lets it)"


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One for each size, and the ragged fill."""
    cell = suspect_cell(cells)
    way = find_way(cell.length, cell.position, facts, min_tail)
    tokens = plan.batch.tokens
    for size in sorted(set(plan.batch.sizes)):
        if size > plan.prompts.count or _too_large(size, facts):
            continue
        rows, seeds = size * rounds(plan, size), _seeds(cell.length, way)
        seeded = seeds * (way.seed_length if way else 0)
        yield Part(
            f"batch {cell_name(size)}",
            rows * (3 + seeds),
            rows * (3 * cell.length + tokens + seeded),
            rows * (1 + seeds + tokens),
        )
    yield from ragged.parts(plan, facts, cell, min_tail)


def rounds(plan: RunPlan, size: int) -> int:
    """Times that a size is sent: at least `batch.rounds` rows of it are measured."""
    return -(-plan.batch.rounds // size)


def cell_name(size: int) -> str:
    return f"M={size}"


def kind_of(size: int, tail: int, region: int | None) -> str:
    """A batch of `size` rows with `tail` tokens each is suspect where the fault reaches so many tokens."""
    if region is None:
        return "suspect" if size in UNKNOWN_SUSPECTS else "control"
    return "suspect" if size * tail <= max(region, tail) else "control"


def _too_large(size: int, facts: ServerFacts) -> str | None:
    limit = most_rows(facts)
    return None if limit is None or size <= limit else f"the server runs at most {limit} requests at once"


def _seeds(length: int, way: Way | None) -> int:
    """Sends of one row beside its cold one that the way takes."""
    return 0 if way is None else way.sends - (way.seed_length == length)


def _round(at: Probing, witness: Witness, prompts: Sequence[str], number: int) -> Iterator[Event]:
    size = len(prompts)
    cell = suspect_cell(at.cells)
    kind = kind_of(size, cell.tail, at.facts.fault_region)
    way = find_way(cell.length, cell.position, at.facts, at.record.min_tail)
    group = f"{cell_name(size)}#{number}"

    def send(attempt: int) -> Iterator[Observation | Corruption]:
        return _group(at, witness, prompts, cell.length, way, Where(cell_name(size), kind, group, attempt))

    yield from in_attempts(
        at, PROBE, group, partial(_complete, size), send, size * (3 + _seeds(cell.length, way))
    )


def _complete(size: int, sent: Sequence[Observation]) -> bool:
    rows = [obs for obs in sent if obs.role == "row" and not obs.answer.failed]
    scored = sum(obs.role == "rescore" and not obs.answer.failed for obs in sent)
    return len(rows) == size and scored == sum(bool(obs.answer.output_ids) for obs in rows)


def _group(
    at: Probing, witness: Witness, prompts: Sequence[str], length: int, way: Way | None, where: Where
) -> Iterator[Observation | Corruption]:
    fitted = [at.prompts.fit(prompt, length) for prompt in prompts]
    known = [(prompt, one.answer) for prompt, one in zip(prompts, fitted, strict=True)]
    top_k = max(at.prompts.top_k(prompt, at.plan.thresholds.slack) for prompt in prompts)
    colds, requests = [], []
    for (prompt, answer), one in zip(known, fitted, strict=True):
        space = partial(at.session.namespace, where.group, where.attempt, prompt)
        send = partial(
            at.send,
            PROBE,
            cell=where.cell,
            kind=where.kind,
            prompt=prompt,
            group=where.group,
            attempt=where.attempt,
            expected_text=answer,
        )
        fills = way is not None and way.seed_length == length
        cold = send(
            "cold", at.request(one.ids, space("row" if fills else "cold"), top_k=top_k), keep_ids=True
        )
        yield cold
        colds.append(cold)
        for _ in range(_seeds(length, way)):
            seed = one.ids[: way.seed_length] if way else ()
            yield send("seed", at.request(seed, space("row")))
        ask = [token for token, _ in cold.answer.top[0]] if cold.answer.top else []
        tokens = at.plan.batch.tokens
        requests.append(at.request(one.ids, space("row"), tokens, ask=ask, top_k=top_k, ignore_eos=True))
    expected = [way.cached if way else 0] * len(prompts)
    rows = send_together(at, witness, "row", requests, known, expected, where)
    for cold, row in zip(colds, rows, strict=True):
        yield row
        agreement = compare_first_token(cold.answer, row.answer, at.plan.thresholds.near_tie)
        if agreement.corrupt:
            yield Corruption(cold, row, agreement)
    for one, row in zip(fitted, rows, strict=True):
        if row.answer.output_ids:
            space = partial(at.session.namespace, where.group, where.attempt, row.prompt)
            whole = [*one.ids, *row.answer.output_ids]
            yield at.send(
                PROBE,
                "rescore",
                at.request(whole, space("rescore"), 0, top_k=1, score_from=len(one.ids)),
                cell=where.cell,
                kind=where.kind,
                prompt=row.prompt,
                group=where.group,
                attempt=where.attempt,
            )
