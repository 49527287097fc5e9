"""The `tasks` probe: graded questions, each asked cold and then served from the prefix cache.

The same ids twice in a namespace of the question's own, whole answers at temperature 0. A question that can
be made longer is fitted to the first suspect length; any other is hit at whatever tail its length leaves.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

from fidelity.engines.facts import ServerFacts
from fidelity.errors import LengthError
from fidelity.events import Event
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.plan_probes import Tasks
from fidelity.probes.cells import Cell
from fidelity.probes.impact import NO_CACHE, suspect
from fidelity.probes.pairs import Pair, attempt_of
from fidelity.probes.part import Part
from fidelity.probes.probing import Probing, in_attempts
from fidelity.prompts.families import Family, Frame, Item
from fidelity.prompts.fitting import fit
from fidelity.prompts.questions import Question, load_questions, shipped

PROBE = "tasks"
SHORT_TOKENS, LONG_TOKENS = 16, 512
"""New tokens of an answer to the shipped questions, and to others."""

TYPICAL_TOKENS = 150
"""About what a question takes with its template; for forecasts."""

_SIZE = 2


def run(at: Probing) -> Iterator[Event]:
    """Every question of the plan's files, in order."""
    for question in questions(at.plan):
        yield from _ask(at, question)


def unfit(plan: RunPlan, facts: ServerFacts, batches: bool) -> str | None:
    """Without a prefix cache there is no hit."""
    return None if facts.prefix_cache else NO_CACHE


def parts(plan: RunPlan, facts: ServerFacts, cells: Sequence[Cell], min_tail: int) -> Iterator[Part]:
    """One for each file. Raises PromptError for a file that cannot be used."""
    length = max((cell.length for cell in cells if cell.kind == "suspect"), default=TYPICAL_TOKENS)
    counts: dict[str, int] = {}
    for question in questions(plan):
        counts[question.file] = counts.get(question.file, 0) + 1
    for file, count in counts.items():
        sends = _SIZE * count
        yield Part(f"tasks, {file}", sends, sends * length, sends * new_tokens(plan.tasks))


def questions(plan: RunPlan) -> tuple[Question, ...]:
    """Those of the plan. Raises PromptError naming file and line of one that cannot be used."""
    return _load(plan.tasks.files or shipped(), plan.tasks.limit)


def new_tokens(tasks: Tasks) -> int:
    """How long an answer may get."""
    return tasks.tokens or (LONG_TOKENS if tasks.files else SHORT_TOKENS)


@lru_cache(maxsize=4)
def _load(files: tuple[Path, ...], limit: int | None) -> tuple[Question, ...]:
    return tuple(load_questions(files, limit))


def _ask(at: Probing, question: Question) -> Iterator[Event]:
    tokens = new_tokens(at.plan.tasks)
    try:
        ids = _ids(at, question)
    except LengthError as exc:
        yield at.warn(f"tasks: {question.id} is left out: {exc.message}")
        return
    context = at.facts.raw.get("context_length")
    if isinstance(context, int) and len(ids) + tokens > context:
        yield at.warn(
            f"tasks: {question.id} is left out: {len(ids)} tokens and {tokens} new ones, context {context}"
        )
        return
    pair = Pair(
        at=at,
        probe=PROBE,
        cell=question.file,
        prompt=question.id,
        expected_text=question.answer,
        ids=ids,
        resume=_natural(at, len(ids)),
        tokens=tokens,
    )
    yield from in_attempts(at, PROBE, pair.group, _complete, partial(_send, pair), _SIZE)


def _ids(at: Probing, question: Question) -> list[int]:
    """The question's ids; of one that can be made longer, as many as the first suspect length has."""
    cell = suspect(at.cells)
    if not question.fits:
        return at.prompts.encode([{"role": "user", "content": question.text}])
    item = Item(id=question.id.replace(":", "-"), answer=question.answer)
    frame = Frame(user=question.text)
    family = Family(family="tasks", kind="task", about="a graded question", frames=(frame,), items=(item,))
    length = at.cells[0].length if cell is None else cell.length
    while True:
        try:
            return fit(family, item, length, at.prompts.tokenizer).ids
        except LengthError:
            length += at.facts.grid
            if length > at.cells[-1].length + 8 * at.facts.grid:
                raise


def _natural(at: Probing, length: int) -> Cell:
    """The condition that a second send of a prompt of this length meets."""
    tail = (length - 1) % at.facts.grid + 1
    tails = {cell.tail for cell in at.cells if cell.kind == "suspect"}
    kind = "suspect" if tail in tails and length > tail else "control"
    return Cell(f"L={length} tail={tail}", kind, length, tail, "whatever the question's length leaves")


def _send(pair: Pair, attempt: int) -> Iterator[Observation]:
    return attempt_of(pair, attempt).run(floor=False, go_on=lambda cold: True)


def _complete(sent: Sequence[Observation]) -> bool:
    roles = {obs.role for obs in sent if not obs.answer.failed}
    return {"cold", "hit"} <= roles
