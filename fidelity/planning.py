"""`fidelity plan`: what a plan can and cannot see, worked out before anything is sent."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fidelity import fault_region, forecast
from fidelity.engines.facts import CHUNK, ServerFacts
from fidelity.errors import PlanError
from fidelity.guards.registry import guard
from fidelity.plan import RunPlan, Target
from fidelity.power import POWER, smallest_failed
from fidelity.probes.cells import Cell, choose_cells
from fidelity.stats.rates import clopper_pearson, detectable_rate, prompts_needed


@dataclass(frozen=True)
class Outlook:
    """`minutes` is of requests alone, at `latency` seconds each. `bound`: the upper limit of the corruption
    rate that 0 corrupt of `prompts` gives; `prompts_to_pass`: the fewest that can pass. True rates from
    `caught` on are not passed, from `fails_broken` and `fails_wrong` on they fail (None: never), with
    probability 0.95."""

    plan: str
    target: str
    arms: tuple[str, ...]
    probes: tuple[str, ...]
    cells: tuple[Cell, ...]
    prompts: int
    hits: int
    requests: int
    latency: float
    minutes: float
    looks: int
    unseen: tuple[str, ...]
    max_rate: float
    confidence: float
    bound: float
    prompts_to_pass: int
    caught: float
    fails_broken: float | None
    fails_wrong: float | None
    kappa: float
    least_margin: float
    least_move: float


def assumed_facts(target: Target) -> ServerFacts:
    """What can be known of a server without asking it: the embedded engine's shapes; of any other, a hybrid
    model with checkpoints every 64 tokens, and at TP 1 the fault region of a named GPU."""
    page = target.page_size or (1 if target.strategy == "no_buffer" else CHUNK)
    grid = math.lcm(CHUNK, page)
    if target.kind != "embedded":
        model = target.url or target.model
        facts = ServerFacts("sglang", "not asked", model, grid=grid, strategy=target.strategy)
        return fault_region.learn(target, facts)
    from fidelity.refserver.moe import TILE
    from fidelity.refserver.weights import load
    from fidelity.shapes import largest_affected

    config = load(target.profile).config
    region = largest_affected(
        hidden=config.hidden_size,
        intermediate=config.moe_intermediate_size,
        topk=config.num_experts_per_tok,
        experts=config.num_experts,
        compute_units=target.cu,
        tile=TILE,
    )
    return ServerFacts(
        "fidelity-embedded",
        "not asked",
        target.profile,
        grid=grid,
        strategy=target.strategy,
        fault_region=region,
        simulated=True,
    )


def look_ahead(plan: RunPlan, latency: float) -> Outlook:
    """The outlook of a plan at `latency` seconds a request. Raises PlanError."""
    facts = assumed_facts(plan.target)
    cells = choose_cells(plan.resend, facts)
    limits, count = plan.thresholds.each_look, plan.prompts.count
    requests = _requests(plan, facts, cells)
    deciding = sum(not arm.baseline for arm in plan.arms)
    tests = 2 * deciding * sum(cell.kind == "suspect" for cell in cells)
    return Outlook(
        plan=plan.name,
        target=f"{facts.engine} at {plan.target.url}"
        if plan.target.url
        else f"{facts.engine}, {facts.model}",
        arms=tuple(arm.name for arm in plan.arms),
        probes=plan.selected,
        cells=tuple(cells),
        prompts=count,
        hits=plan.resend.hits,
        requests=requests,
        latency=latency,
        minutes=requests * latency / 60,
        looks=limits.looks,
        unseen=tuple(plan.unprobed.values()),
        max_rate=limits.max_rate,
        confidence=plan.thresholds.confidence,
        bound=clopper_pearson(0, count, limits.confidence).upper,
        prompts_to_pass=prompts_needed(limits.max_rate, limits.confidence),
        caught=detectable_rate(count, POWER),
        fails_broken=smallest_failed(count, "broken", limits, tests),
        fails_wrong=smallest_failed(count, "wrong", limits, tests),
        kappa=limits.kappa,
        least_margin=limits.least_margin,
        least_move=limits.least_move,
    )


def sized_by_rate(plan: RunPlan) -> RunPlan:
    """The plan with the fewest prompts that can bound the corruption rate at its `max_rate`."""
    limits = plan.thresholds.each_look
    return plan.with_prompts(prompts_needed(limits.max_rate, limits.confidence))


def sized_by_minutes(plan: RunPlan, minutes: float, latency: float) -> RunPlan:
    """The plan with the most prompts that `minutes` of requests at `latency` seconds allow. Raises PlanError
    when they do not allow one."""
    facts = assumed_facts(plan.target)
    cells = choose_cells(plan.resend, facts)
    one, two = (_requests(plan.with_prompts(count), facts, cells) for count in (1, 2))
    if one == two:
        raise PlanError("no probe of this plan grows with the number of prompts", "add --probe resend")
    possible = 1 + math.floor((minutes * 60 / latency - one) / (two - one))
    if possible < 1:
        raise PlanError(
            f"{minutes:g} minutes at {latency:g} s a request do not allow one prompt ({one} requests)",
            "give more minutes, fewer cells (--tail, --control) or a shorter warm-up",
        )
    return plan.with_prompts(possible)


def lines(outlook: Outlook) -> Iterator[str]:
    """The outlook in words."""
    who = f"arms: {', '.join(outlook.arms)}; probes: {', '.join(outlook.probes)}"
    yield f"plan '{outlook.plan}' for {outlook.target}, which was not asked; {who}"
    for kind in ("suspect", "control"):
        names = [cell.name for cell in outlook.cells if cell.kind == kind]
        yield f"{kind}s: {', '.join(names) or 'none'}"
    for why in dict.fromkeys(cell.why for cell in outlook.cells):
        yield f"because {why}"
    yield (
        f"{outlook.prompts} prompts in each cell, {outlook.hits} hits each: {outlook.requests} requests, "
        f"{outlook.minutes:.1f} minutes at {outlook.latency:g} s each, without the server's start"
    )
    looks = "" if outlook.looks == 1 else f" ({outlook.looks} looks share the error rates)"
    yield (
        f"0 corrupt of {outlook.prompts} bound the corruption rate at {_percent(outlook.bound)} "
        f"at {outlook.confidence * 100:g} %{looks}; allowed are {_percent(outlook.max_rate)}"
    )
    if outlook.prompts < outlook.prompts_to_pass:
        yield f"this plan cannot pass: that takes {outlook.prompts_to_pass} prompts, none of them corrupt"
    yield f"caught (not passed) with {POWER:.0%} power: true rates from {_percent(outlook.caught)}"
    yield (
        f"failed with {POWER:.0%} power: NaN or another broken rule from {_percent(outlook.fails_broken)}, "
        f"wrong first tokens from {_percent(outlook.fails_wrong)}"
    )
    yield (
        "logprobs that move without a wrong token: seen where a suspect's mean JSD exceeds its control's by "
        f"{outlook.kappa:g} times the control's own ({outlook.least_margin:g} nat at least), or its mean "
        f"|delta logprob| likewise ({outlook.least_move:g} nat at least)"
    )
    unseen = [*outlook.unseen, "other lengths"]
    if "reference" not in outlook.probes:
        unseen.append("errors that cold answers share (--reference)")
    yield f"not seen: {'; '.join(unseen)}"


def _requests(plan: RunPlan, facts: ServerFacts, cells: list[Cell]) -> int:
    owned = plan.target.kind != "attach"
    total = 0
    for number, arm in enumerate(plan.arms):
        tail = guard(arm.guard).min_tail
        parts = forecast.parts(plan, facts, cells, tail, batches=owned, screens=number == 0)
        total += sum(part.requests for part in parts)
    return total


def _percent(rate: float | None) -> str:
    return "no rate" if rate is None else f"{math.ceil(rate * 1000 - 1e-9) / 10:g} %"
