"""The `resend` probe: the same ids cold, cold again, and served from the prefix cache.

Per (prompt, length), in namespaces of its own: cold, cold2 (a second fresh computation: the run-to-run
floor), then the hits in the first one's namespace. All judged sends ask one token at temperature 0, alone in
flight; cold2 and the hits also ask for the logprobs of the cold answer's top ids. Where a cold send and a hit
run the same last step, `longer` scores the prompt with more tokens behind it: what follows its last token is
then computed in a larger step, and by causality is the same distribution. After a corrupt hit, one unjudged
longer send cold and one from the cache make the corruption readable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fidelity.compare import compare_first_token
from fidelity.engines.facts import ServerFacts
from fidelity.engines.request import TOP_K, Request
from fidelity.events import Corruption, Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.plan_probes import Resend
from fidelity.probes import screening
from fidelity.probes.cells import Cell, HitPlan, plan_hit
from fidelity.probes.moved import LEAD, behind_words, led
from fidelity.probes.part import Part
from fidelity.probes.prediction import CachePrediction
from fidelity.probes.probing import Probing, in_attempts
from fidelity.probes.session import FailedRequestError, Session
from fidelity.prompting import shuffled_cells
from fidelity.single_send import corrupt_reason

PROBE = "resend"
SHOW_TOKENS = 16
LONGER = 32
"""Tokens put behind a prompt to compute its last one in a larger step: more than any suspect tail."""


@dataclass(frozen=True)
class Group:
    """One prompt at one length, how many logprobs its sends ask for, and how often it was tried before. A
    `brief` one is sent cold again only after a corrupt hit, and nothing longer is sent to show it."""

    prompt: str
    expected_text: str
    ids: Sequence[int]
    cell: Cell
    how: HitPlan
    top_k: int = TOP_K
    attempt: int = 0
    probe: str = PROBE
    brief: bool = False

    @property
    def key(self) -> str:
        """One for each (prompt, length, tail): only the tail that an identical re-send leaves goes without
        saying."""
        natural = self.how.reachable and not self.how.own_namespace
        tail = "moved" if self.cell.moved else self.cell.tail
        return f"{self.prompt}@{self.cell.length}" + ("" if natural else f"-{tail}")


def scores_longer(facts: ServerFacts) -> bool:
    """Does each group score a longer prompt?"""
    return facts.cold_shares_step is not None and "scores" not in facts.lacks


def sends_per_group(how: HitPlan, resend: Resend, *, longer: bool = False) -> int:
    """Requests one group takes when nothing fails and nothing is corrupt."""
    seeds = resend.hits if how.own_namespace else how.primes
    return 2 + longer + seeds + resend.hits


def complete(records: Sequence[Observation], resend: Resend, *, longer: bool = False) -> bool:
    """Do these observations of one group and attempt hold every judged send, answered?"""
    good = [record.role for record in records if not record.answer.failed]
    once = ("cold", "cold2", "longer") if longer else ("cold", "cold2")
    return all(good.count(role) == 1 for role in once) and good.count("hit") >= resend.hits


def run(at: Probing) -> Iterator[Event]:
    """Every prompt at every length, in an order by the seed; each prompt as soon as it is screened."""
    for prompt in screening.choose(at):
        if not isinstance(prompt, str):
            yield prompt
            continue
        for cell in shuffled_cells(at.plan, at.cells, prompt):
            yield from measure(at, cell, prompt)


def measure(at: Probing, cell: Cell, prompt: str, probe: str = PROBE) -> Iterator[Event]:
    """One prompt at one length."""
    plan = at.plan
    fitted = at.prompts.fit(prompt, cell.length - LEAD * cell.moved)
    hits = _hits(plan.resend, cell)
    how = plan_hit(cell, at.facts, at.record.min_tail)
    top_k = at.prompts.top_k(prompt, plan.thresholds.slack)
    group = Group(prompt, fitted.answer, fitted.ids, cell, how, top_k, probe=probe)

    def send(attempt: int) -> Iterator[Observation | Corruption]:
        tried = replace(group, attempt=attempt)
        if cell.moved:
            own = led(fitted.ids, at.session.namespace(group.key, attempt))
            return _run_moved(at.session, replace(tried, ids=own), at.record.min_tail)
        return run_group(at.session, tried, hits, at.record.min_tail, plan.thresholds.near_tie)

    longer = scores_longer(at.facts)
    size = sends_per_group(how, hits, longer=longer)
    yield from in_attempts(at, probe, group.key, lambda sent: complete(sent, hits, longer=longer), send, size)


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One for each cell."""
    count = plan.prompts.count
    longer = scores_longer(facts)
    for cell in cells:
        how = plan_hit(cell, facts, min_tail)
        hits = _hits(plan.resend, cell)
        sends = count * sends_per_group(how, hits, longer=longer)
        short = how.seed_length * (hits.hits if how.own_namespace else how.primes)
        short += longer * (cell.length + LONGER)
        tokens = count * (cell.length * (2 + hits.hits) + short)
        yield Part(f"{cell.kind} {cell.name}", sends, tokens, sends)


def _hits(resend: Resend, cell: Cell) -> Resend:
    """A moved prompt is served moved states once: then the cache holds it by itself."""
    return resend.model_copy(update={"hits": 1}) if cell.moved else resend


def _run_moved(session: Session, group: Group, min_tail: int) -> Iterator[Observation | Corruption]:
    """The hit comes before the cold sends: those would leave the prompt's own states in a cache that an
    engine keeps of what its slots held before."""
    sender = _Sender(session, group, min_tail)
    yield sender.send("seed", "moved", length=group.how.seed_length)
    yield sender.send("hit", "moved")
    cold = sender.send("cold", "a", predict=False)
    yield cold
    ask = [token for token, _ in cold.answer.top[0]] if cold.answer.top else []
    yield sender.send("cold2", "b", ask=ask, predict=False)


def run_group(
    session: Session, group: Group, resend: Resend, min_tail: int, near_tie: float
) -> Iterator[Observation | Corruption]:
    """Send one group; yields each record, and each corrupt hit as soon as it is known. Raises as
    `Session.send`."""
    sender = _Sender(session, group, min_tail)
    cold = sender.send("cold", "a", predict=False)
    yield cold
    ask = [token for token, _ in cold.answer.top[0]] if cold.answer.top else []
    if not group.brief:
        yield sender.send("cold2", "b", ask=ask, predict=False)
        if scores_longer(session.facts):
            behind = [*cold.answer.output_ids[:1], *group.ids][:LONGER]
            yield sender.send("longer", "longer", behind=behind, tokens=0, predict=False)
    corrupt = False
    shared = "a" if group.how.seed_length == group.cell.length else "hit"
    for number in range(resend.hits):
        namespace = f"hit{number}" if group.how.own_namespace else shared
        for _ in range(1 if group.how.own_namespace else group.how.primes if number == 0 else 0):
            yield sender.send("seed", namespace, length=group.how.seed_length)
        hit = sender.send("hit", namespace, ask=ask)
        yield hit
        agreement = compare_first_token(cold.answer, hit.answer, near_tie)
        if agreement.corrupt:
            yield Corruption(cold, hit, agreement)
            corrupt = True
        elif group.brief:
            corrupt = bool(corrupt_reason(cold.answer, hit.answer, near_tie))
    if corrupt and group.brief:
        yield sender.send("cold2", "b", ask=ask, predict=False)
    elif corrupt:
        yield from _show(sender, namespace)


def _show(sender: "_Sender", namespace: str) -> Iterator[Observation]:
    try:
        yield sender.send("show-cold", "show", tokens=SHOW_TOKENS, predict=False)
        yield sender.send("show-hit", namespace, tokens=SHOW_TOKENS)
    except FailedRequestError:
        return


class _Sender:
    """Builds the requests and records of one group, and keeps the cache prediction of each namespace."""

    def __init__(self, session: Session, group: Group, min_tail: int) -> None:
        self.session, self.group, self.min_tail = session, group, min_tail
        self.caches: dict[str, CachePrediction] = {}
        self.sends: dict[str, int] = {}

    def send(
        self,
        role: str,
        purpose: str,
        *,
        length: int | None = None,
        ask: Sequence[int] = (),
        tokens: int = 1,
        predict: bool = True,
        behind: Sequence[int] = (),
    ) -> Observation:
        """With `behind`, those tokens follow the prompt, and are scored."""
        session, group, facts = self.session, self.group, self.session.facts
        moves = group.cell.moved and role == "seed"
        prompt = behind_words(group.ids) if moves else group.ids[: length or group.cell.length]
        ids = [*prompt, *behind] if behind else prompt
        length = len(ids)
        fresh = CachePrediction(facts.grid, facts.strategy, self.min_tail)
        expected = self.caches.setdefault(purpose, fresh).send(length)
        self.sends[purpose] = self.sends.get(purpose, 0) + 1
        # Probes may send the same prompt at the same length, and none may be served from another's sends.
        probe = () if group.probe == PROBE else (group.probe,)
        namespace = session.namespace(*probe, group.key, group.attempt, purpose)

        def record(**what: object) -> Observation:
            return Observation(
                arm=session.arm,
                probe=group.probe,
                role=role,
                namespace=namespace,
                length=length,
                cell=group.cell.name,
                kind=group.cell.kind,
                tail=group.cell.tail,
                prompt=group.prompt,
                group=group.key,
                attempt=group.attempt,
                send=self.sends[purpose],
                expected_cached=expected if predict else 0,
                expected_text=group.expected_text,
                input_ids=list(ids) if role == "cold" else [],
                max_new_tokens=tokens,
                **what,  # type: ignore[arg-type]
            )

        rank = 0 if facts.dp > 1 else None
        request = Request(ids, namespace, tokens, ask, group.top_k, dp_rank=rank, dp_key=facts.dp_key)
        if behind:
            request = replace(request, score_from=group.cell.length)
        return session.send(request, record, watch=role == "hit")
