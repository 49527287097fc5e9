"""Does the tested answer choose the token that the reference chose, and if not, how much does that matter?

Reference regret d = ln P(top1) - ln P(y), y being the token the tested path chose: how much less likely the
reference thought it. Gate on hard flips and off-list tokens; near-ties flip on healthy servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fidelity.stats.topk import BoolArray, FloatArray, IntArray, TopK, columns, defects, merge

Agreement = Literal["same", "near-tie", "hard flip", "off-list", "undefined"]

TIE = 0.125
"""Step of bfloat16 for logits in [16, 32), in nats: a smaller gap can be one rounding."""


@dataclass(frozen=True)
class Regrets:
    """The chosen token of n positions as the reference sees it, arrays [n].

    d: regret in nats, a lower bound where off_list; NaN where the reference is unusable or nothing chosen.
    same: it is the reference's first. off_list: the reference told nothing about it.
    """

    d: FloatArray
    same: BoolArray
    off_list: BoolArray


def regrets(reference: TopK, chosen: IntArray, asked: TopK | None = None) -> Regrets:
    """Regret of the chosen ids [n] (negative: none was chosen) under reference answers [n, k].

    asked: further ids that the reference was asked for. An id it did not list is no likelier than its k-th:
    d >= ln P(top1) - ln P(k-th). Raises ValueError where shapes do not fit.
    """
    if len(chosen) != len(reference.ids):
        raise ValueError(f"{len(chosen)} chosen tokens for {len(reference.ids)} reference answers")
    own = columns(reference)
    told = own if asked is None else columns(merge(reference, asked))
    unusable = np.logical_or.reduce(list(defects(told).values())) | (own.ids < 0).all(axis=0) | (chosen < 0)
    at = told.ids == chosen
    off_list = ~at.any(axis=0)
    top = own.logprobs.max(axis=0)
    kth = np.where(own.ids >= 0, own.logprobs, np.inf).min(axis=0)
    logprob = np.where(off_list, kth, np.where(at, told.logprobs, -np.inf).max(axis=0))
    first = np.take_along_axis(own.ids, own.logprobs.argmax(axis=0)[None, :], axis=0)[0]
    with np.errstate(invalid="ignore"):
        d = np.where(unusable, np.nan, np.maximum(0.0, top - logprob))
    return Regrets(d=d, same=~unusable & (first == chosen), off_list=~unusable & off_list)


def tie_threshold(floor: FloatArray) -> float:
    """tau = max(0.125, p99 of d) over the cold-vs-cold and path-control pairs [n], in nats.

    p99 is a value that occurred (the higher of two neighbours). Without pairs, or when p99 is not finite (a
    control that is itself broken must not excuse the suspect), tau is 0.125.
    """
    if floor.size == 0:
        return TIE
    p99 = float(np.quantile(floor, 0.99, method="higher"))
    return max(TIE, p99) if np.isfinite(p99) else TIE


def classify(found: Regrets, tau: float) -> list[Agreement]:
    """The class of each position, in order. "undefined" is a class of its own, never a kind of agreement."""
    conditions = [np.isnan(found.d), found.same, found.off_list, found.d <= tau]
    names: list[Agreement] = ["undefined", "same", "off-list", "near-tie"]
    return list(np.select(conditions, names, default="hard flip").tolist())


def counts(classes: list[Agreement]) -> dict[Agreement, int]:
    """How many of each class, every class listed."""
    return {name: classes.count(name) for name in get_args(Agreement)}
