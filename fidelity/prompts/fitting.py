"""Fitting a prompt to an exact number of templated tokens.

The filler "1 2 3 ... n" brings the prompt near the wanted length, and copies of a short pad word do the rest.
A BPE tokenizer merges across seams, so the lengths of pieces do not add up: every length is measured on the
whole templated prompt. The result depends on the item, the length and the tokenizer, not on earlier fits.
"""

from dataclasses import dataclass

from fidelity.errors import LengthError
from fidelity.prompts.families import Family, Frame, Item, Message, prompt_id, render
from fidelity.prompts.growth import Growth, filler, growth
from fidelity.prompts.tokenizers import ChatTokenizer

PADS = (" ok", " so", " now", " and", " then", " yes", " right", "!", ".")
_PAD_ROUNDS = 6
_SEARCH_ROUNDS = 64
_FEWER_NUMBERS = 12
"""How many numbers may be given up for pads when no pad fits after the most that fit."""


@dataclass(frozen=True)
class Fitted:
    """A prompt of exactly `length` templated tokens, `ids`.

    Its filler is "1 2 ... filler_count", then `pad_count` times `pad`; it uses `family.frames[frame]`.
    """

    prompt_id: str
    family: str
    item: str
    answer: str
    messages: list[Message]
    ids: list[int]
    length: int
    filler_count: int
    pad: str
    pad_count: int
    frame: int


def fit(family: Family, item: Item, length: int, tokenizer: ChatTokenizer) -> Fitted:
    """The prompt of `item` with exactly `length` templated tokens, in the longest frame that allows it.

    Raises LengthError: which prompt and length, the least length there is, and why this one is not reached.
    """
    known = growth(tokenizer)
    reached: set[int] = set()
    for number, frame in enumerate(family.frames):
        shortest = known.shortest(render(frame, item, filler(1)), tokenizer)
        reached.add(shortest)
        if shortest > length:
            continue
        trial = _Trial(frame, item, tokenizer)
        most = _most_numbers(trial, length, known, shortest)
        for count in range(most, max(most - 1 - _FEWER_NUMBERS, 0), -1):
            padding = _padding(trial, count, length)
            if padding is not None:
                return _fitted(family, number, trial, count, *padding)
        reached |= trial.sizes
    raise _out_of_reach(prompt_id(family, item), length, reached, tokenizer.source)


class _Trial:
    """One item in one frame, measured with any filler, once each."""

    def __init__(self, frame: Frame, item: Item, tokenizer: ChatTokenizer) -> None:
        self.frame, self.item, self.tokenizer = frame, item, tokenizer
        self._ids: dict[str, list[int]] = {}

    def ids(self, count: int, pad: str = "", pad_count: int = 0) -> list[int]:
        text = filler(count, pad, pad_count)
        if text not in self._ids:
            self._ids[text] = self.tokenizer.encode(render(self.frame, self.item, text))
        return self._ids[text]

    def size(self, count: int, pad: str = "", pad_count: int = 0) -> int:
        return len(self.ids(count, pad, pad_count))

    @property
    def sizes(self) -> set[int]:
        return {len(ids) for ids in self._ids.values()}


def _most_numbers(trial: _Trial, length: int, known: Growth, shortest: int) -> int:
    """A count whose prompt takes `length` tokens or up to one number less; the count 1 takes `shortest`.

    Starts from the forecast. Lengths grow with the count almost, not strictly, so a bracket is kept.
    """
    low, high = 1, None
    count = known.forecast(length - shortest, trial.tokenizer)
    for turn in range(_SEARCH_ROUNDS):
        miss = length - trial.size(count)
        cost = known.cost(count + 1, trial.tokenizer)
        if 0 <= miss < cost:
            return count
        if miss >= 0:
            low = max(low, count)
        else:
            high = count
        if high is not None and high - low <= 1:
            return low
        if high is not None and turn >= 4:
            count = (low + high) // 2
        else:
            count = max(count + int(miss // cost), low + 1)
            count = count if high is None else min(count, high - 1)
    return low


def _padding(trial: _Trial, count: int, length: int) -> tuple[str, int] | None:
    """The pad and how many of it, none or more, that bring the prompt with `count` numbers to `length`."""
    lacking = length - trial.size(count)
    if lacking == 0:
        return "", 0
    if lacking < 0:
        return None
    for pad in PADS:
        pad_count, tried = lacking, {0}
        for _ in range(_PAD_ROUNDS):
            if pad_count < 0 or pad_count in tried:
                break
            tried.add(pad_count)
            miss = length - trial.size(count, pad, pad_count)
            if miss == 0:
                return pad, pad_count
            pad_count += miss
    return None


def _fitted(family: Family, frame: int, trial: _Trial, count: int, pad: str, pad_count: int) -> Fitted:
    item, ids = trial.item, trial.ids(count, pad, pad_count)
    return Fitted(
        prompt_id=prompt_id(family, item),
        family=family.family,
        item=item.id,
        answer=item.answer,
        messages=render(trial.frame, item, filler(count, pad, pad_count)),
        ids=ids,
        length=len(ids),
        filler_count=count,
        pad=pad,
        pad_count=pad_count,
        frame=frame,
    )


def _out_of_reach(name: str, length: int, reached: set[int], source: str) -> LengthError:
    least = min(reached)
    if length < least:
        return LengthError(
            f"the prompt '{name}' cannot be {length} templated tokens long: with the filler '1' its shortest "
            f"frame takes {least} ({source})",
            f"ask for {least} tokens or more, or add a shorter frame to the family",
        )
    near = [
        max(size for size in reached if size < length),
        *sorted(size for size in reached if size > length)[:1],
    ]
    return LengthError(
        f"the prompt '{name}' cannot be exactly {length} templated tokens long: no filler or padding gives "
        f"that with this tokenizer ({source}); nearest found: {' and '.join(map(str, near))}, least: {least}",
        f"ask for {near[0]} tokens, or use another prompt",
    )
