"""The `impact` probe: what a corrupt hit does to users, one request pattern after the other.

At the first suspect length, each prompt in namespaces of its own: cold, cold2 (the run-to-run floor), hit:
whole answers at temperature 0. A prompt whose cold answer is unsure (or, for tool calls, no call) is passed
over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fidelity.compare import broken_rules, top_probability
from fidelity.engines.facts import ServerFacts
from fidelity.errors import LengthError, PromptError
from fidelity.events import Event, Sent
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes import screening
from fidelity.probes.cells import Cell
from fidelity.probes.pairs import Pair, attempt_of
from fidelity.probes.part import Part
from fidelity.probes.patterns import PATTERNS, Pattern, cannot, fitted, options, prompts_of
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.session import FailedRequestError

PROBE = "impact"
NO_CACHE = "the server's prefix cache is off"
_SIZE = 3
_REFUSALS = tuple(f"HTTP {status}" for status in (400, 404, 405, 422, 501))
"""How an answer begins of a chat endpoint that is not there or does not take tools."""


def run(at: Probing) -> Iterator[Event]:
    """Every pattern that the server and the plan have something for."""
    cell = suspect(at.cells)
    if cell is None:
        yield at.warn("impact: the plan has no suspect tail, so nothing was sent")
        return
    yield from screening.settle(at)
    for pattern in PATTERNS:
        reason = cannot(at, pattern)
        if reason is None:
            yield from _measure(at, pattern, cell)
        else:
            yield from _skip(at, pattern, reason)


def unfit(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    """Without a prefix cache there is no hit."""
    return None if facts.prefix_cache else NO_CACHE


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One for each pattern, where no prompt is passed over."""
    cell = suspect(cells)
    if cell is None:
        return
    sends = plan.impact.prompts * _SIZE
    for pattern in PATTERNS:
        new = pattern.tokens or plan.impact.tokens
        yield Part(f"impact, {pattern.name}", sends, sends * cell.length, sends * new)


def suspect(cells: Sequence[Cell]) -> Cell | None:
    """The condition that impact is measured in: the first suspect length."""
    return next((cell for cell in cells if cell.kind == "suspect"), None)


def skip_key(pattern: Pattern) -> str:
    """Under what an arm's record keeps why a pattern did not run."""
    return f"{PROBE}, {pattern.name}"


def usable(pattern: Pattern, cold: Observation, sure: float) -> bool:
    """Is a cold answer one to hold a hit against? A broken one is kept: the hit may break the same rule."""
    if cold.answer.failed or broken_rules(cold.answer):
        return not cold.answer.failed
    if pattern.chat:
        return bool(cold.answer.tool_calls) and cold.answer.prompt_tokens == cold.length
    # Without logprobs nothing is known, and nothing is held against the prompt.
    return not top_probability(cold.answer) < sure


def _skip(at: Probing, pattern: Pattern, reason: str) -> Iterator[Event]:
    at.record.skipped[skip_key(pattern)] = reason
    yield at.warn(f"{skip_key(pattern)} not applicable: {reason}")


def _measure(at: Probing, pattern: Pattern, cell: Cell) -> Iterator[Event]:
    wanted, measured = at.plan.impact.prompts, 0
    for entry in prompts_of(at, pattern)[: 2 * wanted]:
        if measured == wanted:
            return
        try:
            found = fitted(at, pattern, entry, cell)
        except LengthError as exc:
            yield at.warn(f"{skip_key(pattern)}: {exc.message}")
            continue
        except PromptError as exc:
            yield from _skip(at, pattern, exc.message)
            return
        pair = Pair(
            at=at,
            probe=PROBE,
            cell=pattern.name,
            prompt=entry.id,
            expected_text=found.answer,
            ids=found.ids,
            resume=replace(cell, length=found.length),
            tokens=pattern.tokens or at.plan.impact.tokens,
            options=options(at, pattern, found.messages),
        )
        sent = [obs for obs in at.earlier if obs.probe == PROBE and obs.group == pair.group]
        refused: list[str] = []
        complete, send = partial(_complete, at, pattern), partial(_send, at, pattern, pair, refused)
        for event in in_attempts(at, PROBE, pair.group, complete, send, _SIZE):
            if isinstance(event, Sent):
                sent.append(event.observation)
            yield event
        cold = [obs for obs in sent if obs.role == "cold"]
        if refused and not measured:
            yield from _skip(at, pattern, f"its chat endpoint refuses: {refused[0]}")
            return
        measured += bool(cold) and usable(pattern, cold[-1], at.plan.thresholds.sure)


def _send(
    at: Probing, pattern: Pattern, pair: Pair, refused: list[str], attempt: int
) -> Iterator[Observation]:
    """What a chat endpoint refuses is added to `refused` and not sent again."""
    sure = at.plan.thresholds.sure
    try:
        yield from attempt_of(pair, attempt).run(floor=True, go_on=lambda cold: usable(pattern, cold, sure))
    except FailedRequestError as exc:
        if not pattern.chat or not str(exc).startswith(_REFUSALS):
            raise
        refused.append(str(exc))


def _complete(at: Probing, pattern: Pattern, sent: Sequence[Observation]) -> bool:
    good = {obs.role: obs for obs in sent if not obs.answer.failed}
    if "cold" not in good:
        return False
    return "hit" in good or not usable(pattern, good["cold"], at.plan.thresholds.sure)
