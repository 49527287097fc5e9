"""The judged sends of one cell, each held against its cold send: agreement, path and divergence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from fidelity.compare import Agreement, compare_first_token
from fidelity.evidence import Group, Judged, missed, not_cold
from fidelity.observations import Observation
from fidelity.probes.cells import Cell
from fidelity.stats import agreement
from fidelity.stats.divergence import Divergences, divergences
from fidelity.stats.topk import ABSENT, BoolArray, TopK

TIE_CAP = 1.0
"""nats: a larger regret is never a near-tie, whatever the controls show. On a screened prompt every flip is
beyond it: with a top probability of 0.9 the second token is at least ln 9 = 2.2 nats below."""

OTHER_TOKENS = "other tokens"
"""The agreement of two cold sends whose prompts differ by a salt: none is looked for."""

TIE_PAIRS = 100
"""Pairs below which their 99th percentile is just their largest, which one corrupt control send would set."""


@dataclass(frozen=True)
class Sends:
    """One kind of send (hits, or cold again) of one cell. `found` has one entry for each of `judged`;
    `unsorted` of these and their cold answers listed their logprobs out of order."""

    groups: Sequence[Group]
    judged: Sequence[Judged]
    found: Divergences
    unsorted: int

    @property
    def counted(self) -> BoolArray:
        """Which of `judged` count: of an attempt that a failed request ended, only what is corrupt."""
        return np.array([one.group.last or one.agreement.corrupt for one in self.judged], dtype=bool)


@dataclass(frozen=True)
class Tie:
    """Regret in nats up to which a flip is a near-tie, and where that came from."""

    threshold: float
    source: str


def compare_hits(cell: Cell, groups: Sequence[Group], near_tie: float, min_tail: int) -> Sends:
    """The hits of a cell. A guard that leaves no tail this short makes its own prediction the path."""
    structural = min_tail > cell.tail
    return compare(
        groups,
        [(group, hit) for group in groups for hit in group.hits],
        lambda group, hit: missed(group, hit, cell, structural=structural),
        near_tie,
    )


def compare_floor(groups: Sequence[Group], near_tie: float) -> Sends:
    """The second cold sends of a cell."""
    pairs = [(group, group.cold2) for group in groups if group.cold2 is not None]
    return compare(groups, pairs, lambda _, cold2: not_cold(cold2), near_tie)


def with_near_tie(sends: Sends, near_tie: float) -> Sends:
    """The same sends, their agreement by another threshold."""
    judged = [replace(one, agreement=_agreement(one.group, one.send, near_tie)) for one in sends.judged]
    return replace(sends, judged=judged)


def tie_threshold(healthy: Sequence[Sends], near_tie: float) -> Tie:
    """tau = max(near_tie, p99 of the regret d over cold-against-cold and path-control pairs), in nats.

    Pairs with d above TIE_CAP are corrupt at any tau and left out, so that a broken control excuses no
    suspect; off-list and broken answers have no regret. Under TIE_PAIRS pairs tau is near_tie.
    """
    regrets = np.array(
        [
            one.agreement.regret
            for one in chain.from_iterable(sends.judged for sends in healthy)
            if one.missed is None and one.agreement.kind in ("same", "near-tie", "hard flip")
        ]
    )
    regrets = regrets[regrets <= TIE_CAP]
    if len(regrets) < TIE_PAIRS:
        return Tie(near_tie, "thresholds.near_tie")
    tau = agreement.tie_threshold(regrets)
    if tau <= max(near_tie, agreement.TIE):
        return Tie(
            near_tie, f"thresholds.near_tie; no less than p99 of {len(regrets)} cold and control pairs"
        )
    return Tie(tau, f"p99 of {len(regrets)} cold and control pairs; thresholds.near_tie is {near_tie:g}")


def compare(
    groups: Sequence[Group],
    pairs: Sequence[tuple[Group, Observation]],
    why_missed: Callable[[Group, Observation], str | None],
    near_tie: float,
) -> Sends:
    """Each send of `pairs` held against the cold one of its group."""
    judged = [
        Judged(group, send, _agreement(group, send, near_tie), why_missed(group, send))
        for group, send in pairs
    ]
    cold = _first_rows([group.cold for group in groups])
    # Each group's cold row is read once and used for all of its sends.
    place = {id(group): number for number, group in enumerate(groups)}
    repeated = np.array([place[id(group)] for group, _ in pairs], dtype=np.intp)
    other = _first_rows([send for _, send in pairs])
    asked = _first_rows([send for _, send in pairs], asked=True)
    found = divergences(TopK(cold.ids[repeated], cold.logprobs[repeated]), other, q_asked=asked)
    return Sends(groups, judged, found, _unsorted(cold) + _unsorted(other))


def _agreement(group: Group, send: Observation, near_tie: float) -> Agreement:
    found = compare_first_token(group.cold.answer, send.answer, near_tie, group.cold_rules(near_tie))
    # Behind another salt the prompt is another one: only what is broken by itself says anything.
    other = send.shared and send.role == "cold2" and found.kind not in ("broken", "unreadable")
    return Agreement(OTHER_TOKENS, 0.0) if other else found


def _first_rows(sends: Sequence[Observation], *, asked: bool = False) -> TopK:
    """The first token's top-k of each send, or the logprobs it was asked for; an empty row where there are
    none."""
    answers = [send.answer.asked if asked else send.answer.top for send in sends]
    rows = [answer[0] if answer else [] for answer in answers]
    width = max(map(len, rows), default=0) or 1
    padded = [row if len(row) == width else [*row, *[(ABSENT, np.nan)] * (width - len(row))] for row in rows]
    # One array of floats holds ids exactly up to 2^53; anything near that is an impossible id anyway.
    numbers = chain.from_iterable(chain.from_iterable(padded))
    block = np.fromiter(numbers, np.float64, count=2 * width * len(rows)).reshape(len(rows), width, 2)
    return TopK(block[:, :, 0].astype(np.int64), block[:, :, 1].copy())


def _unsorted(answers: TopK) -> int:
    with np.errstate(invalid="ignore"):
        return int((np.diff(answers.logprobs, axis=1) > 0).any(axis=1).sum())
