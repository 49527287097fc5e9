"""The `decode` probe: one request in flight generates, and a clean prefill scores the same ids again.

Per prompt, each in a namespace of its own: `decode` at temperature 0, then `rescore` and `rescore2` of
prompt and answer (two fresh prefills: their difference is the run-to-run floor). Where the first leg was
clean and sampling is allowed, `sample` at temperature 1 and a `rescore` of it give an estimate of the KL
divergence. The end of an answer is ignored, so that every prompt gives the same number of tokens.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.events import Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.prompts.open import OpenPrompt, open_prompts
from fidelity.scoring import corrupt_rules

PROBE = "decode"
GREEDY, SAMPLED = "T=0", "T=1"
PROMPT_TOKENS = 24
"""About what an open prompt takes with its template; for forecasts."""


def run(at: Probing) -> Iterator[Event]:
    """The greedy leg over all prompts; then the sampled one, if the first was clean."""
    count, tokens = at.plan.decode_size
    chosen = [open_prompts()[number % len(open_prompts())] for number in range(count)]
    sent: list[Observation] = [obs for obs in at.earlier if obs.probe == PROBE]
    for number, prompt in enumerate(chosen):
        yield from _keeping(sent, _leg(at, prompt, number, tokens, sampled=False))
    if not samples(at.plan):
        return
    if any(rules for _, _, rules in generated(sent, GREEDY)):
        yield at.warn("decode is corrupt at temperature 0: nothing was sampled at temperature 1")
        return
    for number, prompt in enumerate(chosen):
        yield from _leg(at, prompt, number, tokens, sampled=True)


def samples(plan: RunPlan) -> bool:
    """Is there a leg at temperature 1?"""
    allowed = plan.target.kind != "attach" or plan.target.allow_sampling
    return plan.decode.sampling and allowed and (plan.probes is not None or plan.decode.tokens is not None)


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """Decode and its scoring; the sampled leg where there is one."""
    count, tokens = plan.decode_size
    whole = PROMPT_TOKENS + tokens
    yield Part("decode, T=0", count * 3, count * (PROMPT_TOKENS + 2 * whole), count * tokens)
    if samples(plan):
        yield Part("decode, T=1", count * 2, count * (PROMPT_TOKENS + whole), count * tokens)


def generated(
    sent: Sequence[Observation], cell: str
) -> Iterator[tuple[Observation, dict[str, Observation], tuple[str, ...]]]:
    """Each generated answer of a cell, of its last attempt, with the scoring sends of its group by role, and
    why it is corrupt."""
    groups: dict[str, dict[int, dict[str, Observation]]] = {}
    for obs in sent:
        if obs.cell == cell:
            groups.setdefault(obs.group, {}).setdefault(obs.attempt, {})[obs.role] = obs
    for attempts in groups.values():
        roles = attempts[max(attempts)]
        answer = roles.get("decode") or roles.get("sample")
        if answer is not None:
            yield answer, roles, corrupt_rules(answer, roles.get("rescore"), roles.get("rescore2"))


def _keeping(sent: list[Observation], events: Iterator[Event]) -> Iterator[Event]:
    for event in events:
        observation = getattr(event, "observation", None)
        if observation is not None:
            sent.append(observation)
        yield event


def _leg(at: Probing, prompt: OpenPrompt, number: int, tokens: int, *, sampled: bool) -> Iterator[Event]:
    cell = SAMPLED if sampled else GREEDY
    group = f"{prompt.id}#{number}@{cell}"
    wanted = 2 if sampled else 3
    send = partial(_group, at, prompt, group, cell, tokens)
    yield from in_attempts(at, PROBE, group, partial(_complete, wanted), send, wanted)


def _complete(wanted: int, sent: Sequence[Observation]) -> bool:
    good = [obs for obs in sent if not obs.answer.failed]
    return len(good) == wanted or (len(good) == 1 and not good[0].answer.output_ids)


def _group(
    at: Probing, prompt: OpenPrompt, group: str, cell: str, tokens: int, attempt: int
) -> Iterator[Observation]:
    ids = at.prompts.encode(prompt.messages)
    temperature = 1.0 if cell == SAMPLED else 0.0
    send = partial(at.send, PROBE, cell=cell, kind="suspect", prompt=prompt.id, group=group, attempt=attempt)
    space = partial(at.session.namespace, group, attempt)
    request = at.request(ids, space("decode"), tokens, ignore_eos=True, temperature=temperature)
    answer = send("sample" if temperature else "decode", request, watch=True, keep_ids=True)
    yield answer
    if not answer.answer.output_ids:
        return
    whole = [*ids, *answer.answer.output_ids]
    for role in ("rescore",) if temperature else ("rescore", "rescore2"):
        yield send(role, at.request(whole, space(role), 0, top_k=1, score_from=len(ids)))
