"""How much a plan will send to a server, if nothing fails and nothing is corrupt."""

from collections.abc import Iterator, Sequence

from fidelity import preflight
from fidelity.engines import openai_habits
from fidelity.engines.facts import ServerFacts
from fidelity.plan import RunPlan
from fidelity.plan_probes import ProbeName
from fidelity.probes import grid, warmup
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.registry import PROBES
from fidelity.probes.tasks import TYPICAL_TOKENS
from fidelity.prompting import WARMUP_PROMPTS
from fidelity.prompts.counted import FIXED


def parts(
    plan: RunPlan,
    facts: ServerFacts,
    cells: Sequence[Cell],
    min_tail: int,
    *,
    batches: bool,
    screens: bool,
    probes: Sequence[ProbeName] | None = None,
) -> Iterator[Part]:
    """One for the warm-up, the screening and each cell or leg of the probes (by default all that the plan
    has) that the server can take. `screens`: prompts have yet to be chosen."""
    longest = max(cell.length for cell in cells)
    cuts = "ids" not in facts.lacks
    yield Part("warm-up", *warmup.size(plan.resend, longest, batches=batches, cuts=cuts))
    if facts.engine == "openai":
        yield from _learning(plan)
    if preflight.seeks_grid(facts):
        yield grid.part(facts)
    names = plan.selected if probes is None else probes
    count = plan.prompts.count
    if screens and any(PROBES[name].screens for name in names):
        yield Part("screening", count, count * cells[-1].length, count)
    for name in names:
        if PROBES[name].inapplicable(plan, facts, batches) is None:
            yield from PROBES[name].parts(plan, facts, cells, min_tail)


def _learning(plan: RunPlan) -> Iterator[Part]:
    """What a server without a tokenizer is asked to learn what it takes and how long prompts are: one send
    for each prompt, those of the warm-up among them, in the first frame of its family."""
    sends = openai_habits.SENDS
    yield Part("what it takes", sends, sends * TYPICAL_TOKENS, sends)
    sends = FIXED + max(plan.prompts.count, WARMUP_PROMPTS)
    yield Part("lengths", sends, sends * TYPICAL_TOKENS, sends)
