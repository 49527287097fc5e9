"""Log-probabilities of the next token, in nats, and what a reply quotes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Entry = tuple[float, int]  # (logprob, token id)


@dataclass(frozen=True)
class Wanted:
    """What a request wants quoted at each position: how many of the best, and which ids besides."""

    top: int = 0
    token_ids: tuple[int, ...] | None = None


@dataclass
class Quoted:
    """Quoted positions in order; an entry is None where no token comes before, so nothing was predicted."""

    tokens: list[tuple[float | None, int]] = field(default_factory=list)
    top: list[list[Entry] | None] = field(default_factory=list)
    token_ids: list[list[Entry] | None] = field(default_factory=list)


def log_softmax(logits: Row) -> Row:
    """log p [..., vocab] from logits of that shape; a row that holds a NaN becomes NaN throughout.

    Minus infinity is clamped to the lowest finite float32, as serving engines do.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    clamped: Row = np.maximum(logprobs, np.finfo(np.float32).min)  # np.maximum keeps NaN
    return clamped


def best(logprobs: Row, count: int) -> list[Entry]:
    """The `count` most likely tokens of one row, best first; of a NaN row, the first ids."""
    order = np.argsort(-logprobs, kind="stable")[:count]
    return [(float(logprobs[token]), int(token)) for token in order]


def of(logprobs: Row, token_ids: Sequence[int]) -> list[Entry]:
    """The given tokens' entries of one row, in the order asked for."""
    return [(float(logprobs[token]), int(token)) for token in token_ids]


def quote(into: Quoted, logprobs: Row, wanted: Wanted, token: int | None) -> None:
    """Append one position: `token` is the one that followed, None when none was chosen."""
    if token is not None:
        into.tokens.append((float(logprobs[token]), token))
    if wanted.top > 0:
        into.top.append(best(logprobs, wanted.top))
    if wanted.token_ids is not None:
        into.token_ids.append(of(logprobs, wanted.token_ids))


def quote_prompt(into: Quoted, logits: Row, wanted: Wanted, ids: Sequence[int]) -> None:
    """Quote prompt tokens `ids` from the logits [len(ids), vocab] of the positions they stand at.

    The first of them is not predicted by any of these positions: its entries are None.
    """
    into.tokens.append((None, int(ids[0])))
    if wanted.top > 0:
        into.top.append(None)
    if wanted.token_ids is not None:
        into.token_ids.append(None)
    for row, token in zip(log_softmax(logits[: len(ids) - 1]), ids[1:], strict=True):
        quote(into, row, wanted, int(token))
