"""How much a plan will send to a server, if nothing fails and nothing is corrupt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fidelity.engines.facts import ServerFacts
from fidelity.plan import RunPlan
from fidelity.probes import resend, warmup
from fidelity.probes.cells import Cell, plan_hit


@dataclass(frozen=True)
class Part:
    """Requests to /generate of one kind, and their tokens in all."""

    what: str
    requests: int
    prompt_tokens: int
    new_tokens: int


def parts(
    plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int, *, batches: bool, screens: bool
) -> Iterator[Part]:
    """One for the warm-up, the screening and each cell. `screens`: prompts have yet to be chosen."""
    longest = max(cell.length for cell in cells)
    yield Part("warm-up", *warmup.size(plan.resend, longest, batches=batches))
    count = plan.prompts.count
    if screens:
        yield Part("screening", count, count * cells[-1].length, count)
    for cell in cells:
        how = plan_hit(cell, facts, min_tail)
        sends = count * resend.sends_per_group(how, plan.resend)
        short = how.seed_length * plan.resend.hits if how.own_namespace else cell.length * how.primes
        tokens = count * (cell.length * (2 + plan.resend.hits) + short)
        yield Part(f"{cell.kind} {cell.name}", sends, tokens, sends)
