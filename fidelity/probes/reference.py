"""The `reference` probe: what resend and decode sent cold, held against a trusted server's answers.

Run after them, over what they recorded. A second server is asked each cold prompt twice (the difference is
its own noise) and scores each generated answer twice, all alone, in fresh namespaces; one that decodes
speculatively answers the prompts of draft, too. Of a recorded reference the answers to the same ids are
copied into this run's record; where the two generated something else, this arm's server scores what the
reference generated.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fidelity.engines.facts import ServerFacts
from fidelity.engines.speculation import algorithm
from fidelity.errors import PlanError
from fidelity.events import Event
from fidelity.observations import Answer, Observation, read
from fidelity.plan import RunPlan
from fidelity.plan_reference import ARM, is_url
from fidelity.probes import decode, draft
from fidelity.probes.cells import Cell
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.reference import COLD, DRAFTED, SCORED, Reference, Told, load, other_model
from fidelity.servers.running import RunningServer
from fidelity.servers.trusted import reference_server

PROBE = "reference"
DECODE = "answers against the reference"
ACCEPTANCE = "acceptance against the reference"


@dataclass(frozen=True)
class Sent:
    """What this arm was sent: a prompt, and the first `prompt_tokens` of its ids are the prompt's own."""

    prompt: str
    ids: tuple[int, ...]
    prompt_tokens: int
    answer: Answer

    @property
    def group(self) -> str:
        """One for all sends of the same ids, whichever arm they come from."""
        digest = hashlib.sha256(repr(self.ids).encode()).hexdigest()[:12]
        return f"{self.prompt}@{len(self.ids)}#{digest}"


def prove(plan: RunPlan, facts: ServerFacts) -> None:
    """The reference must be of this server's model, before anything is sent. Raises PlanError,
    ResultsError, UnreachableError, NotWhatWasAskedError."""
    if "reference" not in plan.selected or plan.reference is None or plan.reference_any_model:
        return
    if is_url(plan.reference):
        with reference_server(plan) as (_, trusted):
            why = other_model(trusted.model, trusted.vocab_size, facts)
    else:
        source = load(plan.reference).source
        why = other_model(source.model, source.vocab_size, facts)
    if why is not None:
        raise PlanError(why, "the same ids must mean the same: --reference-any-model takes it all the same")


def run(at: Probing) -> Iterator[Event]:
    """Everything of this arm that the record holds by now."""
    record = read(at.session.recorder.path)
    own = [obs for obs in record if obs.arm == at.arm and obs.visit == at.visit]
    known = [obs for obs in record if obs.arm == ARM]
    if is_url(at.plan.reference or ""):
        with reference_server(at.plan) as (server, facts):
            _say(at, f"{facts.engine} {facts.version}, {facts.model}, asked at {at.plan.reference}")
            yield at.warn(at.record.reference)
            if facts.cold_shares_step is not None:
                yield at.warn(f"the reference may share a fault of its last step: {facts.cold_shares_step}")
            yield from _ask(at, server, facts, own, known)
    else:
        reference = load(at.plan.reference or "")
        _say(at, f"{reference.source.described()}, from {at.plan.reference}")
        yield at.warn(at.record.reference)
        yield from _recall(at, reference, own, known)


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """What a second server is asked; of a recorded reference, at most what this server has to score."""
    count, tokens = plan.decode_size if "decode" in plan.selected else (0, 0)
    whole = decode.PROMPT_TOKENS + tokens
    if not is_url(plan.reference or ""):
        yield Part("scores of the reference's answers", count, count * whole, 0)
        return
    lengths = {cell.length for cell in cells} if "resend" in plan.selected else set()
    sends = 2 * plan.prompts.count * len(lengths)
    yield Part("cold sends to the reference", sends, 2 * plan.prompts.count * sum(lengths), sends)
    yield Part("scores by the reference", 2 * count, 2 * count * whole, 0)
    if "draft" in plan.selected:
        prompts, tokens = plan.draft.prompts, plan.draft.tokens
        yield Part("drafts of the reference", prompts, prompts * draft.PROMPT_TOKENS, prompts * tokens)


def cold_sends(own: Sequence[Observation]) -> list[Sent]:
    """The cold sends of resend that were answered, the same ids once."""
    found = {
        tuple(obs.input_ids): Sent(obs.prompt, tuple(obs.input_ids), obs.length, obs.answer)
        for obs in own
        if obs.probe == "resend" and obs.role == "cold" and not obs.answer.failed
    }
    return list(found.values())


def answers(own: Sequence[Observation]) -> list[Sent]:
    """The answers that decode generated at temperature 0, with their clean prefill; the same ids once."""
    found: dict[tuple[int, ...], Sent] = {}
    for obs, roles, _ in decode.generated([obs for obs in own if obs.probe == decode.PROBE], decode.GREEDY):
        if obs.answer.output_ids and "rescore" in roles:
            ids = (*obs.input_ids, *obs.answer.output_ids)
            found[ids] = Sent(obs.prompt, ids, len(obs.input_ids), roles["rescore"].answer)
    return list(found.values())


def drafts(own: Sequence[Observation]) -> list[Sent]:
    """The answers that draft decoded alone."""
    return [Sent(obs.prompt, ids, len(ids), obs.answer) for ids, obs in draft.drafted(own).items()]


def _say(at: Probing, what: str) -> None:
    at.record.reference = f"the reference is {what}: a verdict against it is only as good as it is"


def _ask(
    at: Probing,
    server: RunningServer,
    facts: ServerFacts,
    own: Sequence[Observation],
    known: Sequence[Observation],
) -> Iterator[Event]:
    """Send what is not answered yet to the second server."""
    session = replace(
        at.session,
        arm=ARM,
        server=server,
        facts=facts,
        vocab_size=facts.vocab_size or at.session.vocab_size,
        visit=1,
    )
    there = replace(at, session=session, earlier=list(known))
    for sent in cold_sends(own):
        yield from in_attempts(there, PROBE, sent.group, _complete, partial(_again, there, sent), 2)
    for sent in answers(own):
        yield from in_attempts(there, PROBE, sent.group, _complete, partial(_score, there, sent, SCORED), 2)
    for sent in drafts(own) if algorithm(facts) else ():
        yield from in_attempts(there, PROBE, sent.group, _answered, partial(_draft, there, sent), 1)


def _recall(
    at: Probing, reference: Reference, own: Sequence[Observation], known: Sequence[Observation]
) -> Iterator[Event]:
    """Copy what the reference told of the same ids; score here what it generated from the same prompts."""
    copied = {(obs.role, tuple(obs.input_ids)) for obs in known}
    wanted = {role: {sent.ids for sent in cold_sends(own)} for role in COLD}
    wanted[DRAFTED] = {sent.ids for sent in drafts(own)}
    generated = answers(own)
    prompts = {sent.ids[: sent.prompt_tokens] for sent in generated}
    scored_here = {sent.ids for sent in generated}
    for told in reference.told:
        start = len(told.ids) - len(told.answer.scored)
        of_this_run = told.ids in wanted[told.role] if told.role in wanted else told.ids[:start] in prompts
        if not of_this_run:
            continue
        if (told.role, told.ids) not in copied:
            at.session.recorder.add(_copy(at, reference, told))
        if told.role == SCORED[0] and told.ids not in scored_here:
            sent = Sent(told.prompt, told.ids, start, told.answer)
            yield from in_attempts(at, PROBE, sent.group, _answered, partial(_score, at, sent, SCORED[:1]), 1)


def _copy(at: Probing, reference: Reference, told: Told) -> Observation:
    cells = {**dict.fromkeys(COLD, f"L={len(told.ids)}"), DRAFTED: ACCEPTANCE}
    new = {**dict.fromkeys(COLD, 1), DRAFTED: len(told.answer.output_ids)}
    return Observation(
        order=at.session.next_order(),
        arm=ARM,
        probe=PROBE,
        role=told.role,
        namespace=f"recorded by run {reference.source.run_id}",
        length=len(told.ids),
        sent_at=0.0,
        answer=told.answer,
        cell=cells.get(told.role, DECODE),
        prompt=told.prompt,
        group=Sent(told.prompt, told.ids, 0, told.answer).group,
        input_ids=list(told.ids),
        max_new_tokens=new.get(told.role, 0),
    )


def _complete(sent: Sequence[Observation]) -> bool:
    return sum(not obs.answer.failed for obs in sent) == 2


def _answered(sent: Sequence[Observation]) -> bool:
    return any(not obs.answer.failed for obs in sent)


def _again(at: Probing, sent: Sent, attempt: int) -> Iterator[Observation]:
    """The prompt cold and cold again, with the logprobs of the ids that this arm answered."""
    ask = [token for token, _ in sent.answer.top[0]] if sent.answer.top else []
    top_k = at.prompts.top_k(sent.prompt, at.plan.thresholds.slack)
    for role in COLD:
        namespace = at.session.namespace(PROBE, sent.group, attempt, role)
        yield at.send(
            PROBE,
            role,
            at.request(sent.ids, namespace, ask=ask, top_k=top_k),
            cell=f"L={len(sent.ids)}",
            prompt=sent.prompt,
            group=sent.group,
            attempt=attempt,
            expected_cached=0,
            keep_ids=True,
        )


def _draft(at: Probing, sent: Sent, attempt: int) -> Iterator[Observation]:
    """The prompt alone, decoded as far as draft does."""
    namespace = at.session.namespace(PROBE, sent.group, attempt, DRAFTED)
    yield at.send(
        PROBE,
        DRAFTED,
        at.request(sent.ids, namespace, at.plan.draft.tokens, ignore_eos=True),
        cell=ACCEPTANCE,
        prompt=sent.prompt,
        group=sent.group,
        attempt=attempt,
        keep_ids=True,
    )


def _score(at: Probing, sent: Sent, roles: Sequence[str], attempt: int) -> Iterator[Observation]:
    """A clean prefill of a prompt and an answer to it."""
    for role in roles:
        namespace = at.session.namespace(PROBE, sent.group, attempt, role)
        yield at.send(
            PROBE,
            role,
            at.request(sent.ids, namespace, 0, top_k=1, score_from=sent.prompt_tokens),
            cell=DECODE,
            prompt=sent.prompt,
            group=sent.group,
            attempt=attempt,
            keep_ids=True,
        )
