"""Training chats drawn from the prompt bank: the frames, fillers and pads of the probes, and the answers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from tokenizers import Tokenizer

from fidelity.refserver.training.texts import LONG_ANSWERS, THOUGHT

_PACKAGE: Final = Path(__file__).parents[2]
# An installed wheel carries the prompt files inside the package, a source checkout beside it.
PROMPTS: Final = next(
    (folder for folder in (_PACKAGE / "data" / "prompts", _PACKAGE.parent / "prompts") if folder.is_dir()),
    _PACKAGE.parent / "prompts",
)
PADS: Final = (" ok", " ok", " ok", " ok", " so", " now", " and", " well", "!", ".")
OPEN: Final = "<think>\n\n</think>\n\n"
OPEN_THINKING: Final = "<think>\n"
MEMORISED_SHARE: Final = 0.04
THINKING_SHARE: Final = 0.04
LONG_WEIGHT: Final = 0.2  # of a token of a long text, or a hundred of them would drown the one-token answers


@dataclass(frozen=True)
class Turn:
    role: str
    content: str


@dataclass(frozen=True)
class Frame:
    """A chat with places for the filler and the item's words; the last turn is the user's question."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Family:
    name: str
    frames: tuple[Frame, ...]
    items: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """One training sequence: token ids, and how much each counts as a prediction (0: it is only read)."""

    ids: list[int]
    weight: list[float]


def load_bank(folder: Path = PROMPTS) -> list[Family]:
    """Read every `*.yaml` family of `folder`, in the order of the file names."""
    return [
        _family(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.yaml"))
    ]


def _family(raw: dict[str, Any]) -> Family:
    frames = []
    for frame in raw["frames"]:
        turns = [Turn("system", frame["system"])] if "system" in frame else []
        turns += [Turn(turn["role"], turn["content"]) for turn in frame.get("history", [])]
        frames.append(Frame((*turns, Turn("user", frame["user"]))))
    return Family(raw["family"], tuple(frames), tuple(raw["items"]))


def fill(template: str, item: dict[str, str], filler: str) -> str:
    """Put the filler and the item's words in their places, by plain replacement (JSON braces are safe)."""
    for key, value in item.items():
        template = template.replace("{" + key + "}", value)
    return template.replace("{filler}", filler)


def filler_text(numbers: int, pads: int, pad: str) -> str:
    """The running numbers `1 2 3 ... numbers`, then `pads` copies of `pad`."""
    return " ".join(str(i) for i in range(1, numbers + 1)) + pad * pads


class _Chat:
    """The tokens of one chat as the template writes them; only the answers are learnt, each with its end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids: list[int] = []
        self.weight: list[float] = []

    def add(self, text: str, weight: float = 0.0) -> None:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        self.ids += ids
        self.weight += [weight] * len(ids)

    def ask(self, turns: Sequence[Turn]) -> None:
        self.add("".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns))

    def reply(self, text: str, thinking: bool, weight: float = 1.0) -> None:
        self.add("<|im_start|>assistant\n" + (OPEN_THINKING if thinking else OPEN))
        if thinking:
            self.add(f"{THOUGHT}\n</think>\n\n", LONG_WEIGHT)
        self.add(f"{text}<|im_end|>", weight)
        self.add("\n")


class Corpus:
    """Draws training samples; the same bank, tokenizer and seed give the same samples."""

    def __init__(self, bank: Sequence[Family], tokenizer: Tokenizer, seed: int) -> None:
        self._bank = bank
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._queue: list[tuple[Family, dict[str, str]]] = []
        answers = {item["answer"] for family in bank for item in family.items}
        self._words = sorted(word for word in answers if word.isalpha() and len(word) > 2)

    def sample(self, limit: int, single: bool) -> Sample:
        """One chat of at most `limit` tokens: one question behind any amount of filler, or as many as fit."""
        chat = _Chat(self._tokenizer)
        if self._rng.random() < MEMORISED_SHARE:
            question, answer = self._rng.choice(LONG_ANSWERS)
            chat.ask([Turn("user", question)])
            chat.reply(answer, thinking=False, weight=LONG_WEIGHT)
            return Sample(chat.ids, chat.weight)
        thinking = self._rng.random() < THINKING_SHARE
        while self._question(chat, limit, single, thinking) and not single:
            pass
        return Sample(chat.ids, chat.weight)

    def _question(self, chat: _Chat, limit: int, single: bool, thinking: bool) -> bool:
        """Add the next item to the chat; False if it did not fit any more."""
        rng, (family, item) = self._rng, self._next_item()
        # A probe uses the longest frame that fits, so the first one gets half of the long prompts.
        frame = rng.choice((family.frames[0], *family.frames) if single else family.frames)
        turns = [turn for turn in frame.turns if not chat.ids or turn.role != "system"]
        shortest = _Chat(self._tokenizer)
        shortest.ask([Turn(turn.role, fill(turn.content, item, "1")) for turn in turns])
        shortest.reply(item["answer"], thinking)
        room = limit - len(chat.ids) - len(shortest.ids)
        if room < 0:
            self._queue.append((family, item))
            return False
        pads = min(room, rng.choice((0, 0, 1, 2, 3, rng.randint(4, 16))))
        room = (
            rng.randint(0, room - pads)
            if single or rng.random() < 0.1
            else min(room - pads, rng.randint(0, 12))
        )
        filler = filler_text(numbers_in(room), pads, rng.choice(PADS))
        chat.ask([Turn(turn.role, fill(turn.content, item, filler)) for turn in turns])
        chat.reply(item["answer"], thinking)
        return True

    def _next_item(self) -> tuple[Family, dict[str, str]]:
        # One shuffled pass over the bank after the other, so that every item is seen equally often.
        # Remembering is harder than knowing: code words come more often, two of three with any word.
        if not self._queue:
            for family in self._bank:
                for item in family.items:
                    self._queue.append((family, item))
                    if family.name == "recall":
                        self._queue += [(family, {"answer": self._rng.choice(self._words)}) for _ in range(2)]
            self._rng.shuffle(self._queue)
        return self._queue.pop()


def numbers_in(tokens: int) -> int:
    """The largest n for which `1 2 ... n` takes at most `tokens` more than `1` does: one a digit or space."""
    n = 1
    while tokens >= 1 + len(str(n + 1)):
        n += 1
        tokens -= 1 + len(str(n))
    return n
