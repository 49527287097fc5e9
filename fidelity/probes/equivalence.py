"""The `equivalence` probe: cold sends that a guard does not touch, the same on each start of each arm.

One request for each prompt and length: one new token at temperature 0 with its top logprobs, and the logprobs
of the prompt's last tokens, all from one clean prefill in a namespace of its own. Each arm's server is
started twice, so the arms are compared with each other and each with itself.
"""

import random
from collections.abc import Iterator, Sequence
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.errors import LengthError
from fidelity.events import Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts

PROBE = "equivalence"
SCORED = 128
"""Prompt tokens whose logprobs are compared, at the end of each prompt."""


def run(at: Probing) -> Iterator[Event]:
    """Every prompt at every length, on one start of the arm's server."""
    plan, chosen = at.plan.equivalence, list(_fitted(at))
    if len(chosen) < plan.prompts * len(plan.lengths):
        yield at.warn(
            f"equivalence: only {len(chosen) // len(plan.lengths)} prompts reach the plan's lengths"
        )
    # Each start has an order of its own: what depends on the sends before would otherwise repeat with them.
    random.Random(f"{at.plan.seed}/{at.arm}/{at.visit}").shuffle(chosen)
    for prompt, ids in chosen:
        group = f"{prompt}@{len(ids)}"
        yield from in_attempts(at, PROBE, group, _complete, partial(_send, at, prompt, ids, group), 1)


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One start."""
    count, lengths = plan.equivalence.prompts, plan.equivalence.lengths
    sends = count * len(lengths)
    yield Part("equivalence", sends, count * sum(lengths), sends)


def unfit(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    """A server that cannot be started again has no second start to compare with."""
    if plan.target.kind == "attach":
        return "it needs a restart between its sends, and a running server is not ours to start again"
    return None


def _fitted(at: Probing) -> Iterator[tuple[str, Sequence[int]]]:
    """The first prompts of the run's order that reach every length, at each of them."""
    taken = 0
    for entry in at.prompts.order:
        if taken == at.plan.equivalence.prompts:
            return
        try:
            fitted = [at.prompts.fit(entry.id, length).ids for length in at.plan.equivalence.lengths]
        except LengthError:
            continue
        taken += 1
        yield from ((entry.id, ids) for ids in fitted)


def _complete(sent: Sequence[Observation]) -> bool:
    return any(not obs.answer.failed for obs in sent)


def _send(at: Probing, prompt: str, ids: Sequence[int], group: str, attempt: int) -> Iterator[Observation]:
    namespace = at.session.namespace(PROBE, at.visit, group, attempt)
    request = at.request(ids, namespace, score_from=max(1, len(ids) - SCORED))
    yield at.send(
        PROBE,
        "cold",
        request,
        cell=f"L={len(ids)}",
        prompt=prompt,
        group=group,
        attempt=attempt,
        expected_cached=0,
    )
