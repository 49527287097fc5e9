"""`fidelity probe-cache`: the cache grid of a running server, with the counts that show it."""

import json
import os
import sys
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fidelity import preflight
from fidelity.engines.facts import ServerFacts
from fidelity.engines.registry import engine_of, meet
from fidelity.errors import UnreachableError
from fidelity.grid import CHAINS, Found
from fidelity.observations import Recorder
from fidelity.plan import RunPlan
from fidelity.probes import grid
from fidelity.probes.session import Budget, Session
from fidelity.prompting import open_prompts
from fidelity.report.words import readable
from fidelity.servers.attach import attach


def probe_cache(plan: RunPlan, *, dry_run: bool, as_json: bool) -> int:
    """Say what the cache of the plan's attached server does, or with `dry_run` what would be sent. Raises
    FidelityError."""
    with attach(plan.target) as server:
        facts = meet(server.client, plan.target.api)
        preflight.prove(plan, plan.arms[0], facts)
        if dry_run:
            _say_sends(server.url, facts)
            return 0
        run_id = f"probe-cache-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        facts = preflight.learn_vocabulary(server, facts, Budget())
        facts = preflight.learn_habits(plan, server, facts, run_id, Budget())
        tokenizer = open_prompts(plan, server.client, engine_of(facts)).tokenizer
        session = Session(
            arm="probe-cache",
            run_id=run_id,
            server=server,
            facts=facts,
            recorder=Recorder(Path(os.devnull)),
            next_order=count().__next__,
            vocab_size=facts.vocab_size or tokenizer.vocab_size,
            decode=lambda ids: tokenizer.decode(ids),
        )
        found = grid.find(session, tokenizer)
    if found.kind == "failed":
        raise UnreachableError(found.says, "see that the server answers, and try again")
    if as_json:
        sys.stdout.write(json.dumps(_data(server.url, facts, found), indent=1) + "\n")
    else:
        _say(server.url, facts, found)
    return 0


def _say_sends(url: str, facts: ServerFacts) -> None:
    part = grid.part(facts)
    lines = [
        f"dry run: nothing was computed on {url}",
        f"at most {part.requests} prompts of up to {part.prompt_tokens // part.requests} tokens, one new "
        f"token each, one in flight, in {CHAINS} namespaces of their own; nothing is flushed",
        "a chain of sends of which one fails begins again in a new namespace, twice at most",
    ]
    if facts.engine == "openai":
        lines.append("and some 4 more before, to learn what the server takes")
    sys.stdout.write("\n".join(map(readable, lines)) + "\n")


def _say(url: str, facts: ServerFacts, found: Found) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(readable(f"{url}: {facts.engine} {facts.version}, {facts.model}"), markup=False)
    table = Table("prompt", "sent", box=None, pad_edge=False)
    for heading in ("tokens", "from the cache", "tail"):
        table.add_column(heading, justify="right")
    for one in found.sends:
        told = ["not told" if value is None else str(value) for value in (one.cached, one.tail)]
        table.add_row(str(one.chain), one.what, str(one.sent), *told)
    console.print(table)
    if facts.grid_known:
        console.print(f"the server says: grid {facts.grid}, {facts.strategy}", markup=False)
    console.print(f"cache: {found.says}", markup=False)


def _data(url: str, facts: ServerFacts, found: Found) -> dict[str, object]:
    """The conclusion and its evidence; `told` is what the server itself says."""
    told = {"grid": facts.grid, "strategy": facts.strategy} if facts.grid_known else None
    sends = [{**asdict(one), "tail": one.tail} for one in found.sends]
    server = {"url": url, "engine": facts.engine, "version": facts.version, "model": facts.model}
    return {"server": server, "told": told, **asdict(replace(found, sends=())), "sends": sends}
