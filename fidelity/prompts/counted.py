"""Prompts whose tokens only the server knows: chat messages, and how many tokens they are there.

The number is learnt from short sends. What the filler of a prompt adds is the same behind every text, so it
is measured once, in a prompt of its own, and each text only with the shortest filler.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, overload

from fidelity.errors import PromptError
from fidelity.prompts.growth import filler
from fidelity.prompts.tokenizers import Messages, Tools

Count = Callable[[Messages], int]
"""The templated tokens of a conversation, as a server counts them."""

PADS = (" ok", " so", " now", " and", " then", " yes", " right")
_NUMBERS = re.compile(r"(?<![\w.])1(?: \d+)+")
_CLASSES = ((2, 5, 9), (10, 39, 69), (100, 130, 160))
"""Filler counts by which numbers of one, two and three digits are shown to take a constant number of tokens
each."""

_PAD_COUNTS = (1, 2, 5)
FIXED = 12
"""Sends that learn what the filler takes, where its numbers stay below 100 and one pad is enough."""


class Counted(list[int]):
    """`messages` of a known length, in place of ids: it has that length and nothing in it, as no id is ever
    made up. It can be sent whole and not be cut."""

    def __init__(self, messages: Messages, length: int) -> None:
        super().__init__()
        self.messages, self.length = messages, length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> int | list[int]:
        if isinstance(index, slice) and range(self.length)[index] == range(self.length):
            return self
        raise ValueError("the tokens of this prompt are not known: it cannot be cut")


class CountingTokenizer:
    """Lengths by the server's count. `send(messages)` is one request, which computes."""

    def __init__(self, send: Count, source: str) -> None:
        self._send, self.source = send, source
        self.vocab_size: int | None = None
        self._known: dict[str, int] = {}
        self._costs: dict[tuple[int, ...], int | None] = {}
        self._pads: dict[str, int | None] = {}

    def encode(self, messages: Messages, tools: Tools = ()) -> Counted:
        """Raises PromptError for tools, and as `send` does."""
        if tools:
            raise PromptError("the length of a chat with tools is not learnt from a server's count")
        found = _split(messages)
        # A word behind the filler may be the text's own, which its shortest filler has shown.
        short = next(
            (one for one in found if repr(one.messages) in self._known), found[-1] if found else None
        )
        if short is not None:
            more, padding = self._numbers(short.count), self._padding(short.pad, short.pads)
            if more is not None and padding is not None:
                return Counted(messages, self._size(short.messages) + more + padding)
        return Counted(messages, self._size(messages))

    def decode(self, ids: Sequence[int]) -> str:
        """Raises PromptError: there is no way back."""
        raise PromptError("this server has no tokenizer to ask")

    def _size(self, messages: Messages) -> int:
        key = repr(messages)
        if key not in self._known:
            self._known[key] = self._send(messages)
        return self._known[key]

    def _numbers(self, count: int) -> int | None:
        """Tokens that the filler "1 ... count" takes beyond "1"; None where numbers take no constant number
        of tokens."""
        total, at = 0, 1
        for points in _CLASSES:
            last = int("9" * len(str(points[0])))
            cost = self._cost(points)
            if cost is None:
                return None
            upto = min(count, last)
            total += (upto - at) * cost
            at = upto
            if at == count:
                return total
        return None

    def _cost(self, points: tuple[int, ...]) -> int | None:
        if points not in self._costs:
            sizes = [self._size(_alone(filler(count))) for count in points]
            steps = list(zip(points, points[1:], sizes, sizes[1:], strict=False))
            costs = {(large - small) / (b - a) for a, b, small, large in steps}
            first = costs.pop()
            self._costs[points] = int(first) if not costs and first == int(first) > 0 else None
        return self._costs[points]

    def _padding(self, pad: str, count: int) -> int | None:
        if count and pad not in self._pads:
            one, *more = (
                self._size(_alone(filler(1, pad, n))) - self._size(_alone("1")) for n in _PAD_COUNTS
            )
            even = all(size == one * n for size, n in zip(more, _PAD_COUNTS[1:], strict=True))
            self._pads[pad] = one if even else None
        each = self._pads[pad] if count else 0
        return None if each is None else each * count


def _alone(text: str) -> Messages:
    return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class _Short:
    """`messages` with the shortest filler; that of the whole counts to `count`, with so many `pads`."""

    messages: Messages
    count: int
    pad: str
    pads: int


def _split(messages: Messages) -> list[_Short]:
    """What is left of messages without their filler, taking none to all of what can be pads behind it; empty
    where they hold no longer filler than the shortest."""
    for place, message in enumerate(messages):
        content = message["content"]
        found = _NUMBERS.search(content)
        if found is None:
            continue
        said = found[0].split(" ")
        count = next((n for n, word in enumerate(said) if word != str(n + 1)), len(said))
        rest = content[found.start() + len(filler(count)) :]
        if count < 2 or rest[:1].isdigit():
            return []
        pad, pads = "", 0
        for one in PADS:
            while rest.startswith(one):
                pad, pads, rest = one, pads + 1, rest[len(one) :]
            if pads:
                break
        # Part of a longer word is no pad.
        if rest[:1].isalpha():
            return []
        before, after = content[: found.start()], messages[place + 1 :]
        return [
            _Short(
                [*messages[:place], {**message, "content": f"{before}1{pad * (pads - n)}{rest}"}, *after],
                count,
                pad,
                n,
            )
            for n in range(pads + 1)
        ]
    return []
