"""A top-k answer of a server, for one position or for n of them, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ABSENT = -1
"""Id of an empty place in a padded row; its logprob is never read."""

ROUNDING = 1e-3
"""How far a logprob may lie above 0, and the mass of an answer above 1, by rounding alone."""

STAND_IN = -9999.0
"""What some servers write for a logprob of -inf or NaN. Nothing finite at or below it is a logprob."""

HUGE = 1e30
"""A value above this stands for +inf or NaN."""

MISMATCHED = "mismatched lengths"
EMPTY = "empty"
IMPOSSIBLE = "impossible id"
DUPLICATE = "duplicate ids"
POSITIVE = "logprob above 0"
OVERFULL = "mass above 1"
UNDEFINED = "undefined logprob"

_LARGEST_ID = 2**31 - 1
_NO_ID = -2


@dataclass(frozen=True)
class TopK:
    """Ids and their logprobs (nats) as answered: shape [k] for one position, [n, k] for n positions.

    Nothing computed from it depends on the order of the entries. Shorter rows of [n, k] are padded with
    `ABSENT` ids. A null logprob is NaN.
    """

    ids: IntArray
    logprobs: FloatArray

    @classmethod
    def of(cls, ids: Sequence[int], logprobs: Sequence[float | None]) -> TopK:
        """One answer [k] from lists as they come out of JSON, null logprobs included."""
        return cls(np.asarray(ids, dtype=np.int64), np.asarray(logprobs, dtype=np.float64))

    def problems(self) -> tuple[str, ...]:
        """What makes one answer [k] unusable, in a fixed order; empty when nothing does.

        Every divergence of an answer with a problem is NaN. A logprob of exactly -inf is a probability of
        zero, no problem; NaN, +inf and the stand-ins (finite, at or below -9999 or above 1e30) are.
        """
        if self.ids.shape != self.logprobs.shape:
            return (MISMATCHED,)
        found = defects(columns(stack([self])))
        return tuple(name for name, rows in found.items() if rows[0])

    def is_sorted(self) -> bool:
        """Whether the logprobs [k] never rise from first to last (False where one is NaN)."""
        return bool(np.all(self.logprobs[1:] <= self.logprobs[:-1]))

    def rows(self, which: slice) -> TopK:
        """Some of the rows of an answer [n, k]."""
        return TopK(self.ids[which], self.logprobs[which])


def stack(answers: Sequence[TopK | None]) -> TopK:
    """n single answers as one padded [n, k].

    None becomes an empty row. An answer of mismatched lengths becomes a row of impossible ids, unusable like
    itself: nobody can say which logprob belongs to which id.
    """
    width = max((a.ids.size for a in answers if a is not None), default=0) or 1
    ids = np.full((len(answers), width), ABSENT, dtype=np.int64)
    logprobs = np.full((len(answers), width), np.nan)
    for row, answer in enumerate(answers):
        if answer is None:
            continue
        if answer.ids.shape != answer.logprobs.shape:
            ids[row] = _NO_ID
        else:
            ids[row, : answer.ids.size] = answer.ids
            logprobs[row, : answer.ids.size] = answer.logprobs
    return TopK(ids, logprobs)


def merge(own: TopK, asked: TopK) -> TopK:
    """An answer [n, k] together with the logprobs [n, m] the same server was asked for by id, as [n, k + m].

    An id told twice counts once; where the two logprobs differ by more than `ROUNDING` (or one is NaN), the
    answer contradicts itself and the id's logprob becomes NaN.
    """
    same = (asked.ids[:, :, None] == own.ids[:, None, :]) & (asked.ids[:, :, None] >= 0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(asked.logprobs[:, :, None] - own.logprobs[:, None, :])
    agree = (asked.logprobs[:, :, None] == own.logprobs[:, None, :]) | (apart <= ROUNDING)
    contradicted = (same & ~agree).any(axis=1)
    told = same.any(axis=2)
    return TopK(
        np.concatenate([own.ids, np.where(told, ABSENT, asked.ids)], axis=1),
        np.concatenate([np.where(contradicted, np.nan, own.logprobs), asked.logprobs], axis=1),
    )


class Columns(NamedTuple):
    """Answers [n, k] laid out [k, n], so that each numpy pass runs over long rows of memory."""

    ids: npt.NDArray[np.int32]
    logprobs: FloatArray  # -inf where there is no id
    probabilities: FloatArray  # 0 where there is no id


def columns(answer: TopK) -> Columns:
    """The columns of an answer [n, k]."""
    possible = (answer.ids >= ABSENT) & (answer.ids <= _LARGEST_ID)
    ids = np.ascontiguousarray(np.where(possible, answer.ids, _NO_ID).T, dtype=np.int32)
    logprobs = np.array(answer.logprobs.T, dtype=np.float64, order="C")
    logprobs[ids < 0] = -np.inf
    with np.errstate(over="ignore"):
        return Columns(ids, logprobs, np.exp(logprobs))


def defects(cols: Columns) -> dict[str, BoolArray]:
    """For each problem that a row can have, which of the n rows have it."""
    undefined, _ = odd_logprobs(cols)
    return {
        EMPTY: (cols.ids == ABSENT).all(axis=0),
        IMPOSSIBLE: (cols.ids == _NO_ID).any(axis=0),
        DUPLICATE: _told_twice(cols.ids),
        POSITIVE: ((cols.logprobs > ROUNDING) & (cols.logprobs <= HUGE)).any(axis=0),
        OVERFULL: cols.probabilities.sum(axis=0) > 1 + ROUNDING,
        UNDEFINED: undefined > 0,
    }


def _told_twice(ids: npt.NDArray[np.int32]) -> BoolArray:
    # Comparing all columns with each other is far quicker than sorting, and mostly finds nothing.
    if not any((ids[column + 1 :] == ids[column]).any() for column in range(len(ids) - 1)):
        return np.zeros(ids.shape[1], dtype=np.bool_)
    ordered = np.sort(ids, axis=0)
    return np.asarray(((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)).any(axis=0))


def odd_logprobs(cols: Columns) -> tuple[IntArray, IntArray]:
    """How many logprobs of each row are undefined, and how many are -inf."""
    none = np.zeros(cols.ids.shape[1], dtype=np.int64)
    if cols.logprobs.size == 0 or (cols.logprobs.min() > STAND_IN and cols.logprobs.max() <= HUGE):
        return none, none
    zero = (cols.logprobs == -np.inf) & (cols.ids >= 0)
    return undefined_logprobs(cols.logprobs).sum(axis=0), zero.sum(axis=0)


def undefined_logprobs(logprobs: FloatArray) -> BoolArray:
    """Which logprobs are none: NaN, +inf and the stand-ins. -inf is a logprob, that of probability 0."""
    zero: BoolArray = logprobs == -np.inf
    return (~(logprobs > STAND_IN) & ~zero) | (logprobs > HUGE)
