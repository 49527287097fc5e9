"""Request patterns of users whose answers a wrong first token spoils, and the prompts of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fidelity.engines import openai_chat
from fidelity.errors import LengthError
from fidelity.paths import data_dir
from fidelity.probes.cells import Cell
from fidelity.probes.probing import Probing
from fidelity.prompts.families import Message
from fidelity.prompts.fitting import Fitted, fit
from fidelity.prompts.loading import load_families
from fidelity.prompts.select import Prompt
from fidelity.prompts.tokenizers import ChatTokenizer, Messages

LETTERS = ("A", "B", "C", "D")
WHOLE = 48
"""New tokens that a short tool call never needs, nor half of them a JSON object: cut off, it would not
parse."""

MORE_GRID_POINTS = 8
"""How many checkpoints further a prompt may resume that is too long for the first one."""

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "give_city",
            "description": "Give a city as the answer.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
)


@dataclass(frozen=True)
class Pattern:
    """One of them. Its prompts are the run's own (neither `kinds` nor `file`), those of the plan's families
    of these `kinds`, or those of a `file` in prompts/impact.

    `tokens`: new ones, None for the plan's; `letters`: the logprobs of the choice letters are asked for;
    `parses`: the answer must be JSON; `known`: its right answer is; `chat`: sent to the OpenAI endpoint with
    tools."""

    name: str
    about: str
    kinds: tuple[str, ...] = ()
    file: str | None = None
    tokens: int | None = None
    letters: bool = False
    parses: bool = False
    known: bool = True
    chat: bool = False


PATTERNS = (
    Pattern("regenerate", "the same request again must give the same answer"),
    Pattern("single token", "a class, a route, yes or no: one token", ("classifier", "yes-no"), tokens=1),
    Pattern("multiple choice", "by the first token's logprobs", ("multiple-choice",), tokens=1, letters=True),
    Pattern("json", "the first token opens a JSON object", ("json",), tokens=WHOLE // 2, parses=True),
    Pattern("tool call", "the first token opens a call", file="tool", tokens=WHOLE, parses=True, chat=True),
    Pattern("long answer", "does corruption go on after the first token?", file="long", known=False),
)


def cannot(at: Probing, pattern: Pattern) -> str | None:
    """Why this server or plan has nothing for a pattern, None when it has."""
    if pattern.chat and "tools" in at.facts.lacks:
        return at.facts.lacks["tools"]
    if "ids" in at.facts.lacks and (pattern.chat or pattern.letters):
        return at.facts.lacks["ids"]
    if pattern.chat and (reason := openai_chat.cannot(at.facts)):
        return reason
    if pattern.kinds and not any(entry.family.kind in pattern.kinds for entry in at.prompts.order):
        return f"the plan has no prompts of the kind {' or '.join(pattern.kinds)}"
    if pattern.letters and letter_ids(at) is None:
        return "the letters A to D are not one token each in this vocabulary"
    return None


def prompts_of(at: Probing, pattern: Pattern) -> Sequence[Prompt]:
    """All prompts that a pattern may use, in order."""
    if pattern.file is not None:
        (family,) = load_families([data_dir("prompts") / "impact" / f"{pattern.file}.yaml"])
        return [Prompt(family, item) for item in family.items]
    if pattern.kinds:
        return [entry for entry in at.prompts.order if entry.family.kind in pattern.kinds]
    return list(at.prompts.taken)


def fitted(at: Probing, pattern: Pattern, entry: Prompt, cell: Cell) -> Fitted:
    """The prompt at the length of `cell`; where it is too long, as far behind a later checkpoint. Raises
    LengthError."""
    if pattern.file is None:
        return at.prompts.fit(entry.id, cell.length)
    tokenizer: ChatTokenizer = _WithTools(at.prompts.tokenizer) if pattern.chat else at.prompts.tokenizer
    lengths = range(cell.length, cell.length + MORE_GRID_POINTS * at.facts.grid + 1, at.facts.grid)
    for length in lengths:
        try:
            return fit(entry.family, entry.item, length, tokenizer)
        except LengthError:
            if length == lengths[-1]:
                raise
    raise AssertionError("the lengths are never none")


def options(at: Probing, pattern: Pattern, messages: list[Message]) -> dict[str, Any]:
    """What the requests of a pattern have beside their ids."""
    if pattern.letters:
        return {"ask": letter_ids(at) or ()}
    if pattern.chat:
        thinking = {"enable_thinking": at.plan.prompts.thinking}
        chat = {"model": at.facts.names[0], "messages": messages, "tools": list(TOOLS)}
        return {"chat": {**chat, "chat_template_kwargs": thinking}}
    return {}


def letter_ids(at: Probing) -> tuple[int, ...] | None:
    """The ids of A, B, C, D where a turn begins with them; None unless each is one token."""
    whole = [at.prompts.encode([{"role": "user", "content": letter}]) for letter in LETTERS]
    if len({len(ids) for ids in whole}) != 1:
        return None
    differing = [column for column in zip(*whole, strict=True) if len(set(column)) > 1]
    if len(differing) != 1 or len(set(differing[0])) != len(LETTERS):
        return None
    return differing[0]


class _WithTools:
    """A tokenizer whose every conversation describes the tools."""

    def __init__(self, inner: ChatTokenizer) -> None:
        self._inner = inner
        self.source, self.vocab_size = inner.source, inner.vocab_size

    def encode(self, messages: Messages, tools: Any = ()) -> list[int]:
        return self._inner.encode(messages, TOOLS)

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode(ids)
