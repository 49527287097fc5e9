"""How many tokens the filler takes: a forecast that spares a search, measured once for each tokenizer."""

from weakref import WeakKeyDictionary

from fidelity.prompts.families import Message
from fidelity.prompts.tokenizers import ChatTokenizer

_SAMPLE = 40
"""Numbers of each digit count that are tokenized to learn their mean cost."""


def filler(count: int, pad: str = "", pad_count: int = 0) -> str:
    """ "1 2 3 ... count", then `pad_count` copies of `pad`."""
    return _numbers(1, count) + pad * pad_count


class Growth:
    """What was measured of one tokenizer: true of the tokenizer itself, whatever was fitted before."""

    def __init__(self) -> None:
        self._costs: dict[int, float] = {}
        self._shortest: dict[str, int] = {}

    def cost(self, number: int, tokenizer: ChatTokenizer) -> float:
        """Tokens that `number` adds to the filler: the mean over numbers with as many digits."""
        digits = len(str(number))
        if digits not in self._costs:
            first = 10 ** (digits - 1)
            more = min(_SAMPLE, 9 * first - 1)
            long, short = (_size(_numbers(first, first + n), tokenizer) for n in (more, 0))
            self._costs[digits] = max((long - short) / more, 0.25)
        return self._costs[digits]

    def forecast(self, tokens: int, tokenizer: ChatTokenizer) -> int:
        """Filler count whose numbers after the first take about `tokens`, and rather fewer than more."""
        count, left = 1, float(tokens)
        while True:
            cost = self.cost(count + 1, tokenizer)
            room = 10 ** len(str(count + 1)) - 1 - count
            if left < room * cost:
                return count + int(left / cost)
            count, left = count + room, left - room * cost

    def shortest(self, messages: list[Message], tokenizer: ChatTokenizer) -> int:
        """Templated tokens of `messages`, which hold the filler "1"."""
        text = repr(messages)
        if text not in self._shortest:
            self._shortest[text] = len(tokenizer.encode(messages))
        return self._shortest[text]


_MEASURED: WeakKeyDictionary[ChatTokenizer, Growth] = WeakKeyDictionary()


def growth(tokenizer: ChatTokenizer) -> Growth:
    """The measurements of `tokenizer`, kept for as long as it lives."""
    return _MEASURED.setdefault(tokenizer, Growth())


def _numbers(first: int, last: int) -> str:
    return " ".join(map(str, range(first, last + 1)))


def _size(text: str, tokenizer: ChatTokenizer) -> int:
    return len(tokenizer.encode([{"role": "user", "content": text}]))
