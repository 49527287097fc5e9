"""The probes by name: how each runs, what it will send, and which servers it cannot be run on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fidelity.engines.facts import ServerFacts
from fidelity.events import Event
from fidelity.plan import RunPlan
from fidelity.plan_probes import ProbeName
from fidelity.probes import (
    batch,
    checkpoint,
    decode,
    draft,
    equivalence,
    impact,
    reference,
    resend,
    speed,
    sweep,
    tasks,
)
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing


def _any(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    return None


@dataclass(frozen=True)
class Probe:
    """`unfit(plan, facts, batches)` says why a server cannot take the probe, None when it can; `screens`: it
    needs prompts that the model is sure of; `visits`: on how many starts of each arm's server it runs;
    `needs`: what the server must not lack (`ServerFacts.lacks`)."""

    run: Callable[[Probing], Iterator[Event]]
    parts: Callable[[RunPlan, ServerFacts, Sequence[Cell], int], Iterator[Part]]
    unfit: Callable[[RunPlan, ServerFacts, bool], str | None] = _any
    screens: bool = False
    visits: int = 1
    needs: tuple[str, ...] = ()

    def inapplicable(self, plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
        """Why the server cannot take the probe; None when it can."""
        lacking = [facts.lacks[need] for need in self.needs if need in facts.lacks]
        return lacking[0] if lacking else self.unfit(plan, facts, batches)


PROBES: dict[ProbeName, Probe] = {
    "resend": Probe(resend.run, resend.parts, screens=True),
    "decode": Probe(decode.run, decode.parts, needs=("scores",)),
    "batch": Probe(batch.run, batch.parts, batch.unfit, screens=True, needs=("list",)),
    "draft": Probe(draft.run, draft.parts, draft.unfit, needs=("list",)),
    "impact": Probe(impact.run, impact.parts, impact.unfit, screens=True, needs=("apart",)),
    "tasks": Probe(tasks.run, tasks.parts, tasks.unfit),
    "sweep": Probe(sweep.run, sweep.parts, sweep.unfit, screens=True, needs=("apart", "ids")),
    "speed": Probe(speed.run, speed.parts, visits=2, needs=("stream",)),
    "equivalence": Probe(equivalence.run, equivalence.parts, equivalence.unfit, visits=2, needs=("scores",)),
    "checkpoint": Probe(
        checkpoint.run, checkpoint.parts, checkpoint.unfit, screens=True, needs=("apart", "ids")
    ),
    "reference": Probe(reference.run, reference.parts, needs=("ids",)),
}
