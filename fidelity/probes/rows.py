"""Rows of a batch: prompts told apart by how their answers begin, how each is served from the cache, and how
all are sent as one list-valued request."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.engines.formed import Witness
from fidelity.engines.request import Request
from fidelity.observations import Observation
from fidelity.probes.cells import Cell
from fidelity.probes.prediction import CachePrediction
from fidelity.probes.probing import Probing
from fidelity.prompting import PromptSource

PROBE = "batch"


@dataclass(frozen=True)
class Way:
    """How a prompt comes to be served from the cache: its first `seed_length` tokens are sent `sends` times
    before; then `cached` tokens are taken."""

    seed_length: int
    sends: int
    cached: int


@dataclass(frozen=True)
class Where:
    """Where a send stands in the plan."""

    cell: str
    kind: str
    group: str
    attempt: int
    probe: str = PROBE


def find_way(length: int, position: int, facts: ServerFacts, min_tail: int) -> Way | None:
    """The shortest way to a hit of `length` tokens that resumes at `position`, by prediction; else to one
    that resumes anywhere; None where no way leads to a hit."""
    if not facts.prefix_cache:
        return None
    found = []
    for seed_length, sends in ((length, 1), (length, 2), (position, 1)):
        cache = CachePrediction(facts.grid, facts.strategy, min_tail)
        for _ in range(sends):
            cache.send(seed_length)
        cached = cache.send(length)
        if cached == position:
            return Way(seed_length, sends, cached)
        if cached:
            found.append(Way(seed_length, sends, cached))
    return found[0] if found else None


def suspect_cell(cells: Sequence[Cell]) -> Cell:
    """The cell whose length the rows have: the shortest suspect one."""
    return next((cell for cell in cells if cell.kind == "suspect"), cells[0])


def order_canaries(prompts: PromptSource) -> list[str]:
    """The prompts of the run, those first whose answers begin with a token that no earlier one's does."""
    seen: set[int] = set()
    distinct, alike = [], []
    for entry in prompts.taken:
        token = prompts.begins.get(entry.id)
        if token is None or token in seen:
            alike.append(entry.id)
        else:
            seen.add(token)
            distinct.append(entry.id)
    return distinct + alike


def most_rows(facts: ServerFacts) -> int | None:
    """The requests that the server runs at once, where it says."""
    limit = facts.raw.get("max_running_requests")
    return limit if type(limit) is int and limit > 0 else None


def send_together(
    at: Probing,
    witness: Witness,
    role: str,
    requests: Sequence[Request],
    prompts: Sequence[tuple[str, str]],
    expected_cached: Sequence[int],
    where: Where,
) -> list[Observation]:
    """One list-valued request, a row for each (prompt, known answer). Raises as `Session.send_batch`."""
    computed = sum(len(one.input_ids) - cached for one, cached in zip(requests, expected_cached, strict=True))
    name = f"{where.group}/{where.attempt}/{role}{at.session.next_number()}"
    with witness.watching(len(requests), computed) as formed:

        def record(row: int, **what: object) -> Observation:
            request, told = requests[row], formed()
            return Observation(
                arm=at.arm,
                probe=where.probe,
                role=role,
                namespace=request.namespace,
                length=len(request.input_ids),
                cell=where.cell,
                kind=where.kind,
                prompt=prompts[row][0],
                group=where.group,
                attempt=where.attempt,
                expected_cached=expected_cached[row],
                expected_text=prompts[row][1],
                max_new_tokens=request.max_new_tokens,
                batch=name,
                row=row,
                formed=told.how,
                alone=told.alone,
                **what,  # type: ignore[arg-type]
            )

        makers = [partial(record, row) for row in range(len(requests))]
        return at.session.send_batch(requests, makers, known_ids=True)
