"""What is proved, learned and said of a server before its first measured request."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fidelity.engines import openai_habits, vacuity, vocabulary
from fidelity.engines.facts import ServerFacts
from fidelity.engines.registry import engine_of
from fidelity.errors import NotWhatWasAskedError, StartError
from fidelity.installed import aiter_guard, look
from fidelity.plan import Arm, RunPlan
from fidelity.probes.cells import Cell
from fidelity.probes.session import Budget
from fidelity.servers.running import RunningServer


def prove(plan: RunPlan, arm: Arm, facts: ServerFacts) -> None:
    """An arm must be the server that was asked for. Raises NotWhatWasAskedError."""
    name = plan.target.served_model
    if name is not None and "models" not in facts.lacks and name not in facts.names:
        raise NotWhatWasAskedError(
            f"the server serves {' and '.join(facts.names)}, not {name}",
            "give its own name with --served-model, or the address of the server that was meant",
        )
    if plan.target.kind != "embedded":
        return
    asked = () if arm.guard == "none" else (arm.guard,)
    if facts.guards != asked or facts.fault != plan.target.fault:
        raise NotWhatWasAskedError(
            f"arm '{arm.name}': the server reports guards {facts.guards} and fault {facts.fault!r}, "
            f"asked were {asked} and {plan.target.fault!r}"
        )


def learn_vocabulary(server: RunningServer, facts: ServerFacts, budget: Budget) -> ServerFacts:
    """The facts with the vocabulary's size, where the server can be asked for it without computing anything.
    Raises OutOfRequestsError."""
    if facts.vocab_size is not None or not vocabulary.can_be_asked(facts):
        return facts
    budget.take(1)
    return replace(facts, vocab_size=vocabulary.ask(server.client))


def learn_habits(
    plan: RunPlan, server: RunningServer, facts: ServerFacts, run_id: str, budget: Budget
) -> ServerFacts:
    """The facts with what a server with nothing but the public API shows in a few sends; others as they are.
    Raises UnreachableError, NotWhatWasAskedError, OutOfRequestsError."""
    if facts.engine != "openai":
        return facts
    named = replace(facts, model=plan.target.served_model or facts.model)
    return openai_habits.learn(server.client, named, plan.prompts.thinking, run_id, budget.take)


def seeks_grid(facts: ServerFacts) -> bool:
    """Is the grid to be found, and can it be?"""
    return not facts.grid_known and facts.prefix_cache and "cached_tokens" not in facts.lacks


def may_load(plan: RunPlan, server: RunningServer) -> bool:
    """May this server get more than one request at once?"""
    return server.owned or plan.target.allow_load


def knows_ids(facts: ServerFacts, vocab_size: int | None) -> bool:
    """Can prompts be sent as ids, or does the API take none anyway?"""
    return vocab_size is not None or facts.refuses_unknown_ids or "ids" in facts.lacks


def warnings(
    plan: RunPlan, server: RunningServer, facts: ServerFacts, cells: Sequence[Cell], *, knows_ids: bool
) -> Iterator[str]:
    """What changes how much the run can prove. `knows_ids`: as of the function of that name."""
    yield from facts.notes
    if not knows_ids:
        yield "the size of the vocabulary is not known: prompts are sent as text, not as token ids"
    longest = max(cell.length for cell in cells)
    for found in vacuity.find(facts, longest, owned=server.owned, aiter=_aiter(plan)):
        # On a server of ours the guard is what the arm asked for.
        if found.id != "guarded" or not server.owned:
            yield found.line()
    if server.owned:
        return
    if facts.guards is None:
        yield "guards unknown: this server was not started here, and cannot say whether one is applied"
    load = engine_of(facts).look(server.client)
    if plan.target.assume_idle:
        yield "assumed, not shown: that nobody else uses this server (--assume-idle)"
    elif load is None:
        yield "the server does not tell how many requests run: no suspect cell can pass without --assume-idle"
    if load is not None and load.busy:
        yield f"{load.busy} requests of others run now: what does not run alone proves nothing"


def _aiter(plan: RunPlan) -> str | None:
    """How the aiter beside a local sglang treats a split of one tile; None where there is none to look at."""
    if plan.target.kind != "process":
        return None
    try:
        source = look([plan.target.python or sys.executable]).fused_moe
    except StartError:
        return None
    return aiter_guard(source)[0] if source else None
