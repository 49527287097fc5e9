"""The `speed` probe: when tokens come, cold and from the cache, alone and at once. Decides nothing by itself.

Each start of an arm's server is one block, and a run with several arms starts them A B B A, so that what
drifts over the run falls on all alike. A block begins with sends that are not timed: `check` generates with
logprobs and `rescore` holds them against a clean prefill, as the speed of a corrupt answer is no baseline,
and `warm` is streamed. Timed are, for each prompt, `cold` and `hit` (one token each) and `single` (many
tokens), then waves of `wave` requests at once; these are streamed, without logprobs, and ignore the end of an
answer.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.errors import LengthError
from fidelity.events import Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.prediction import CachePrediction
from fidelity.probes.probing import Probing, in_attempts
from fidelity.prompts.open import OpenPrompt, open_prompts

PROBE = "speed"
WARM_UP, PAIR, SINGLE = "warm-up", "cold and hit", "single"
WARM_UPS = 1
WARM_TOKENS = 8
WAVES = 3
PROMPT_TOKENS = 24
"""About what an open prompt takes with its template; for forecasts."""


def run(at: Probing) -> Iterator[Event]:
    """One block."""
    sizes = concurrency(at.plan, at.batches)
    # A resumed run has a fresh server to warm up.
    start = at.session.run_id
    for number in range(WARM_UPS):
        yield from _group(at, WARM_UP, f"check{number}/{start}", 2, partial(_check, at, number))
    rows = max(sizes, default=1)
    yield from _group(at, WARM_UP, f"warm/{start}", rows, partial(_wave, at, 0, rows, WARM_UP, "warm"))
    order = list(range(at.plan.speed.prompts))
    random.Random(f"{at.plan.seed}/speed").shuffle(order)
    fitted = _fitted(at, len(order))
    primes = hit_primes(at.cells[0].length, at.facts, at.record.min_tail)
    if primes is None:
        yield at.warn("speed: no re-sent prompt is served from this server's cache, so no hit was timed")
    for number in order:
        if number < len(fitted):
            prompt, ids = fitted[number]
            yield from _group(
                at, PAIR, prompt, 1 if primes is None else primes + 2, partial(_pair, at, prompt, ids, primes)
            )
        name = f"{_open(number).id}#{number}"
        yield from _group(at, SINGLE, name, 1, partial(_single, at, number))
    for size in sizes:
        cell = f"c={size}"
        for number in range(WAVES):
            send = partial(_wave, at, number * size, size, cell, "wave")
            yield from _group(at, cell, f"wave{number}", size, send)
    if not sizes and max(at.plan.speed.concurrency, default=1) > 1:
        yield at.warn("speed: nothing was timed at once: that needs --allow-load, and no --rate")


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One block."""
    count, tokens, length = plan.speed.prompts, plan.speed.tokens, cells[0].length
    sizes = concurrency(plan, plan.target.kind != "attach" or plan.target.allow_load)
    primes = hit_primes(length, facts, min_tail)
    pair = 1 if primes is None else primes + 2
    timed, warm = count + WAVES * sum(sizes), max(sizes, default=1)
    yield Part(
        "speed, warm-up check", 2 * WARM_UPS, WARM_UPS * (2 * PROMPT_TOKENS + tokens), WARM_UPS * tokens
    )
    yield Part("speed, cold and hit", count * pair, count * pair * length, count * pair)
    yield Part("speed, warm-up streams", warm, warm * PROMPT_TOKENS, warm * WARM_TOKENS)
    yield Part("speed, decode", timed, timed * PROMPT_TOKENS, timed * tokens)


def concurrency(plan: RunPlan, batches: bool) -> tuple[int, ...]:
    """The numbers of requests to time at once; none where only one may be sent, or a rate limit would hold
    them apart."""
    if not batches or plan.target.rate is not None:
        return ()
    return tuple(sorted({size for size in plan.speed.concurrency if size > 1}))


def hit_primes(length: int, facts: ServerFacts, min_tail: int) -> int | None:
    """Re-sends of a prompt of `length` tokens before one is served from the cache; None: it never is."""
    cache = CachePrediction(facts.grid, facts.strategy, min_tail)
    cache.send(length)
    return next((primes for primes in range(2) if cache.send(length) > 0), None)


def _open(number: int) -> OpenPrompt:
    prompts = open_prompts()
    return prompts[number % len(prompts)]


def _fitted(at: Probing, count: int) -> list[tuple[str, Sequence[int]]]:
    """The first prompts of the run's order that reach the first cell's length. No answer is judged, so none
    needs to be sure."""
    found: list[tuple[str, Sequence[int]]] = []
    for entry in at.prompts.order:
        if len(found) == count:
            break
        try:
            found.append((entry.id, at.prompts.fit(entry.id, at.cells[0].length).ids))
        except LengthError:
            continue
    return found


def _group(
    at: Probing, cell: str, name: str, size: int, send: Callable[[str, int], Iterator[Observation]]
) -> Iterator[Event]:
    """`send(group, attempt)` makes the group's `size` requests."""
    group = f"{cell}/{name}"

    def complete(sent: Sequence[Observation]) -> bool:
        return sum(not obs.answer.failed for obs in sent) >= size

    yield from in_attempts(at, PROBE, group, complete, partial(send, group), size)


def _check(at: Probing, number: int, group: str, attempt: int) -> Iterator[Observation]:
    prompt = _open(number)
    ids = at.prompts.encode(prompt.messages)
    send = partial(at.send, PROBE, cell=WARM_UP, prompt=prompt.id, group=group, attempt=attempt)
    space = partial(at.session.namespace, PROBE, at.visit, group, attempt)
    request = at.request(ids, space("check"), at.plan.speed.tokens, top_k=1, ignore_eos=True)
    generated = send("check", request)
    yield generated
    if generated.answer.output_ids:
        whole = [*ids, *generated.answer.output_ids]
        yield send("rescore", at.request(whole, space("rescore"), 0, top_k=1, score_from=len(ids)))


def _pair(
    at: Probing, prompt: str, ids: Sequence[int], primes: int | None, group: str, attempt: int
) -> Iterator[Observation]:
    cache = CachePrediction(at.facts.grid, at.facts.strategy, at.record.min_tail)
    request = at.request(ids, at.session.namespace(PROBE, at.visit, group, attempt), stream=True)
    for role in ["cold", *([] if primes is None else [*["prime"] * primes, "hit"])]:
        yield at.send(
            PROBE,
            role,
            request,
            cell=PAIR,
            prompt=prompt,
            group=group,
            attempt=attempt,
            expected_cached=cache.send(len(ids)),
            watch=role != "prime",
        )


def _single(at: Probing, number: int, group: str, attempt: int) -> Iterator[Observation]:
    prompt = _open(number)
    space = at.session.namespace(PROBE, at.visit, group, attempt)
    ids = at.prompts.encode(prompt.messages)
    request = at.request(ids, space, at.plan.speed.tokens, ignore_eos=True, stream=True)
    yield at.send(
        PROBE, "single", request, cell=SINGLE, prompt=prompt.id, group=group, attempt=attempt, watch=True
    )


def _wave(
    at: Probing, start: int, size: int, cell: str, role: str, group: str, attempt: int
) -> Iterator[Observation]:
    """`size` prompts at once, from the open ones' `start` on."""
    tokens = WARM_TOKENS if role == "warm" else at.plan.speed.tokens
    requests, makers = [], []
    for row in range(size):
        prompt = _open(start + row)
        ids = at.prompts.encode(prompt.messages)
        namespace = at.session.namespace(PROBE, at.visit, group, attempt, row)
        requests.append(at.request(ids, namespace, tokens, ignore_eos=True, stream=True))
        makers.append(
            partial(
                Observation,
                arm=at.arm,
                probe=PROBE,
                role=role,
                namespace=namespace,
                length=len(ids),
                cell=cell,
                prompt=prompt.id,
                group=group,
                attempt=attempt,
                max_new_tokens=tokens,
                batch=group,
                row=row,
            )
        )
    yield from at.session.send_batch(requests, makers)
