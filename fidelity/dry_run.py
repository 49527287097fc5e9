"""What a check would send to a server, said without a request that computes anything."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from fidelity import fault_region, forecast, preflight
from fidelity.engines import vocabulary
from fidelity.engines.facts import EMBEDDED, ServerFacts
from fidelity.engines.registry import engine_of, meet
from fidelity.engines.request import Request
from fidelity.errors import ServerError
from fidelity.plan import Arm, RunPlan
from fidelity.probes.cells import Cell, choose_cells
from fidelity.probes.decode import samples
from fidelity.probes.draft import rows_together
from fidelity.probes.part import Part
from fidelity.probes.resend import SHOW_TOKENS
from fidelity.prompts.counted import Counted
from fidelity.report.words import readable
from fidelity.servers.attach import attach
from fidelity.servers.running import RunningServer

READ = {
    "sglang": "GET /server_info and /model_info once",
    "vllm": "GET /v1/models, /version, /metrics and /server_info once",
    "llamacpp": "GET /props, /v1/models, /slots and /metrics once",
    "openai": "GET /v1/models once",
}
"""By engine, the pages that tell the facts."""

LOAD = {"sglang": "/v1/loads", "vllm": "/metrics", "llamacpp": "/slots and /metrics"}
"""By engine, the pages that tell the load."""

TOKENS = {"llamacpp": "/apply-template and /tokenize"}
"""By engine, the paths that turn a prompt into ids where it is not /tokenize alone."""


def dry_run(plan: RunPlan, console: Console) -> None:
    """Read the facts of the attached server, or of each replica, then print the plan's requests. Raises
    FidelityError; several replicas are asked whether or not one answers."""
    for arm in plan.arms:
        try:
            _dry_run(plan, arm, console)
        except ServerError as exc:
            if not plan.replicated:
                raise
            console.print(f"{arm.name}: {exc.message}", markup=False)


def _dry_run(plan: RunPlan, arm: Arm, console: Console) -> None:
    with attach(plan.target_of(arm)) as server:
        facts = fault_region.learn(plan.target, meet(server.client, plan.target.api))
        preflight.prove(plan, arm, facts)
        cells = choose_cells(plan.resend, facts)
        known = bool(plan.prompts.tokenizer) or preflight.knows_ids(facts, facts.vocab_size)
        asks = not known and vocabulary.can_be_asked(facts)
        warnings = list(preflight.warnings(plan, server, facts, cells, knows_ids=known or asks))
        parts = list(
            forecast.parts(plan, facts, cells, 1, batches=preflight.may_load(plan, server), screens=True)
        )
        path = _path(facts)
        lines = list(_lines(plan, server, facts, cells, parts, path, asks=asks, as_text=not (known or asks)))
    console.print(f"dry run: nothing was sent to {server.url}{path}", markup=False)
    console.print(f"the server is {facts.engine} {facts.version}, serving {facts.model}", markup=False)
    console.print(_table(parts, path))
    for line in lines:
        console.print(line, markup=False)
    for message in warnings:
        console.print(f"warning: {readable(message)}", markup=False)


def _path(facts: ServerFacts) -> str:
    """Where this server takes what it is to compute."""
    prompt = Counted([{"role": "user", "content": ""}], 1) if "ids" in facts.lacks else [0]
    path, _ = engine_of(facts).call([Request(prompt, "")], single=True)
    return path


def _table(parts: Sequence[Part], path: str) -> Table:
    table = Table(f"requests to {path}", box=None, pad_edge=False)
    for heading in ("requests", "prompt tokens", "new tokens"):
        table.add_column(heading, justify="right")
    for part in parts:
        table.add_row(part.what, f"{part.requests}", f"{part.prompt_tokens}", f"{part.new_tokens}")
    table.add_row(
        "in all",
        f"{sum(part.requests for part in parts)}",
        f"{sum(part.prompt_tokens for part in parts)}",
        f"{sum(part.new_tokens for part in parts)}",
    )
    return table


def _lines(
    plan: RunPlan,
    server: RunningServer,
    facts: ServerFacts,
    cells: Sequence[Cell],
    parts: Sequence[Part],
    path: str,
    *,
    asks: bool,
    as_text: bool,
) -> Iterator[str]:
    hits = plan.prompts.count * len(cells) * plan.resend.hits if "resend" in plan.selected else 0
    watched = hits + (plan.decode_size[0] if "decode" in plan.selected else 0)
    yield f"prompts: {plan.prompts.count}, up to {plan.prompts.count} more screened where the model is unsure"
    yield f"after a corrupt hit: 2 more requests of {SHOW_TOKENS} new tokens, once for each prompt and length"
    yield f"a failed request: its prompt and length start again, {plan.resend.attempts} times at most"
    yield f"at once: {_at_once(plan, facts) if preflight.may_load(plan, server) else 'one'}"
    if "decode" in plan.selected and samples(plan):
        yield "at temperature 1: the second decode leg, after a clean first one (--allow-sampling)"
    if "impact" in plan.selected and "tools" not in facts.lacks:
        yield "POST /v1/chat/completions for its tool calls, if the server parses them"
    yield f"at most: {_limits(plan, path)}"
    if preflight.seeks_grid(facts):
        yield (
            f"the grid of the cache is found first: where it is not {facts.grid}, as is taken here, lengths "
            "and requests are others"
        )
    name = "sglang" if facts.engine == EMBEDDED else facts.engine
    if name == "openai":
        yield (
            "one more for each field that is refused, prompt that is passed over, frame that is too long, or "
            "word that takes no constant number of tokens"
        )
    if asks:
        yield f"POST {path} once more, with an id that is refused: the refusal tells the vocabulary's size"
    if not plan.prompts.tokenizer and "ids" not in facts.lacks:
        tokens = TOKENS.get(name, "/tokenize")
        yield f"POST {tokens} to fit each prompt to each length, some 2 to 10 times for each"
    if as_text:
        yield "POST /detokenize once for each prompt and length: text is sent in place of ids"
    if name in LOAD:
        yield f"GET {LOAD[name]} on both sides of each of {watched} hits and decodes, if the server has it"
    yield f"{READ[name]}; nothing is flushed, and /health is never asked"


def _at_once(plan: RunPlan, facts: ServerFacts) -> str:
    together = {
        "batch": max((*plan.batch.sizes, plan.batch.ragged)),
        "draft": rows_together(plan, facts),
        "speed": max(plan.speed.concurrency, default=1),
    }
    most = {name: count for name, count in together.items() if name in plan.selected}
    more = "".join(f", up to {count} in {name}" for name, count in most.items())
    return f"a warm-up batch of 4{more} (--allow-load), else one"


def _limits(plan: RunPlan, path: str) -> str:
    limits = []
    if plan.max_requests is not None:
        limits.append(f"{plan.max_requests} requests to {path}")
    if plan.max_minutes is not None:
        limits.append(f"{plan.max_minutes:g} minutes")
    if plan.target.rate is not None:
        limits.append(f"{plan.target.rate:g} requests of any kind a second")
    return ", ".join(limits) or "no limit set (--max-requests, --max-minutes, --rate)"
