"""The `draft` probe: on a server that decodes speculatively, how much of the draft is accepted.

Logprobs come from the verifying model, so a broken draft shows in no divergence: only in fewer accepted
tokens and slower decode. Per prompt: `decode` alone with logprobs and a `rescore` by a clean prefill (the
output itself must be right all the same), and `timed`, the same streamed. Then the prompts in batches of a
size that the fault does not reach (role `row`): drafting is one token of every row, so a draft that is wrong
in small batches only is accepted less alone than there. The end of an answer is ignored.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.engines.formed import Witness
from fidelity.engines.speculation import algorithm
from fidelity.events import Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.rows import Where, most_rows, send_together
from fidelity.prompts.open import OpenPrompt, open_prompts

PROBE = "draft"
ALONE, TOGETHER = "alone", "together"
UNKNOWN_REGION_ROWS = 8
PROMPT_TOKENS = 24
"""About what an open prompt takes with its template; for forecasts."""


def run(at: Probing) -> Iterator[Event]:
    """Every prompt alone; then all of them in batches, where the server may be sent any."""
    prompts = _prompts(at.plan)
    for number, prompt in enumerate(prompts):
        group = f"{prompt.id}#{number}"
        yield from in_attempts(at, PROBE, group, _complete, partial(_alone, at, prompt, group), 3)
    rows = rows_together(at.plan, at.facts)
    if not at.batches or rows < 2:
        yield at.warn(f"{PROBE}: no batch could be sent, so nothing tells a broken draft from a poor one")
        return
    witness = Witness(at.session.server)
    for start in range(0, len(prompts), rows):
        chosen = [(start + row) % len(prompts) for row in range(rows)]
        group = f"batch#{start}"
        send = partial(_batch, at, witness, [prompts[number] for number in chosen], chosen, group)
        yield from in_attempts(at, PROBE, group, partial(_complete_batch, rows), send, rows)


def unfit(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    """Why a server cannot take the probe."""
    return None if algorithm(facts) else "the server does no speculative decoding"


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """Prompts alone and in batches."""
    count, tokens = plan.draft.prompts, plan.draft.tokens
    yield Part("draft, alone", count * 3, count * (3 * PROMPT_TOKENS + tokens), count * 2 * tokens)
    rows = rows_together(plan, facts)
    if rows > 1 and (plan.target.kind != "attach" or plan.target.allow_load):
        sent = -(-count // rows) * rows
        yield Part("draft, together", sent, sent * PROMPT_TOKENS, sent * tokens)


def rows_together(plan: RunPlan, facts: ServerFacts) -> int:
    """Rows of a batch that the fault does not reach; 1 where the server runs no such batch."""
    region = facts.fault_region
    rows = UNKNOWN_REGION_ROWS if region is None else max(region + 1, 2)
    limit = most_rows(facts)
    return rows if limit is None or rows <= limit else 1


def drafted(observations: Sequence[Observation]) -> dict[tuple[int, ...], Observation]:
    """The answers alone, by the ids of their prompts; the same ids once."""
    return {
        tuple(obs.input_ids): obs
        for obs in observations
        if obs.probe == PROBE and obs.role == "decode" and obs.cell == ALONE and not obs.answer.failed
    }


def _prompts(plan: RunPlan) -> list[OpenPrompt]:
    known = open_prompts()
    return [known[number % len(known)] for number in range(plan.draft.prompts)]


def _complete(sent: Sequence[Observation]) -> bool:
    good = [obs.role for obs in sent if not obs.answer.failed]
    return "decode" in good and "timed" in good


def _complete_batch(rows: int, sent: Sequence[Observation]) -> bool:
    return sum(not obs.answer.failed for obs in sent) == rows


def _alone(at: Probing, prompt: OpenPrompt, group: str, attempt: int) -> Iterator[Observation]:
    ids = at.prompts.encode(prompt.messages)
    tokens = at.plan.draft.tokens
    space = partial(at.session.namespace, PROBE, group, attempt)
    send = partial(at.send, PROBE, cell=ALONE, kind="suspect", prompt=prompt.id, group=group, attempt=attempt)
    decode = send(
        "decode", at.request(ids, space("decode"), tokens, ignore_eos=True), watch=True, keep_ids=True
    )
    yield decode
    if decode.answer.output_ids:
        whole = [*ids, *decode.answer.output_ids]
        yield send("rescore", at.request(whole, space("rescore"), 0, top_k=1, score_from=len(ids)))
    timed = at.request(ids, space("timed"), tokens, ignore_eos=True, stream=True)
    yield send("timed", timed, watch=True)


def _batch(
    at: Probing,
    witness: Witness,
    prompts: Sequence[OpenPrompt],
    numbers: Sequence[int],
    group: str,
    attempt: int,
) -> Iterator[Observation]:
    requests = [
        at.request(
            at.prompts.encode(prompt.messages),
            at.session.namespace(PROBE, group, attempt, row),
            at.plan.draft.tokens,
            ignore_eos=True,
        )
        for row, prompt in enumerate(prompts)
    ]
    names = [(f"{prompt.id}#{number}", "") for prompt, number in zip(prompts, numbers, strict=True)]
    where = Where(TOGETHER, "control", group, attempt, probe=PROBE)
    yield from send_together(at, witness, "row", requests, names, [0] * len(requests), where)
