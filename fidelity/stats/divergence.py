"""Bounds on KL and Jensen-Shannon divergence from two censored top-k answers, in nats.

P is the reference (a cold answer), Q the answer under test (a hit). A server tells only some ids: its top k,
and perhaps ids it was asked for. Let I be the ids told by both, P_I and Q_I their masses, r_P = 1 - P_I and
r_Q = 1 - Q_I what is left. Merging all ids outside I into one bucket can only lower a divergence (the
data-processing inequality; Cover & Thomas, Elements of Information Theory, ch. 2), so

    KL(P || Q) >= sum_I p ln(p / q) + r_P ln(r_P / r_Q)
    JSD(P, Q)  >= sum_I js(p, q) + js(r_P, r_Q),   js(p, q) = [p ln(2p / (p + q)) + q ln(2q / (p + q))] / 2

and as js(p, q) <= (ln 2 / 2)(p + q) for every id (Lin 1991),

    JSD(P, Q)  <= min(ln 2, sum_I js(p, q) + (ln 2 / 2)(r_P + r_Q)).

KL has no finite upper bound: q may be 0 outside I. Nothing is renormalised and nothing is filled in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fidelity.stats.topk import (
    BoolArray,
    FloatArray,
    IntArray,
    TopK,
    columns,
    defects,
    merge,
    odd_logprobs,
    stack,
)

MASS_RESOLUTION = 1e-6
"""A left-over mass of Q below this cannot be told from the rounding of single-precision logprobs.

The bucket term of the KL bound takes max(r_Q, this): the bound only gets lower, and rounding alone never
makes it infinite."""

_LN2 = float(np.log(2.0))
_ROWS = 4096  # pairs worked on at once: their arrays stay in the processor's cache


@dataclass(frozen=True)
class Divergence:
    """Divergence of one pair, in nats; NaN (but for the counts) when an answer has a problem.

    kl_lower: lower bound on KL(P || Q); +inf where Q gives probability 0 to an id that P does not.
    p_covered, q_covered: mass of all the ids that each side told. jsd_lower, jsd_upper: the interval of JSD.
    moved: mean |ln p - ln q| over the ids told by both, NaN when there are none; unlike the divergences it
    sees a distribution move where there is little probability. shared: number of ids told by both.
    nonfinite: number of logprobs that are NaN, infinite or a stand-in.
    """

    kl_lower: float
    p_covered: float
    q_covered: float
    jsd_lower: float
    jsd_upper: float
    moved: float
    shared: int
    nonfinite: int


@dataclass(frozen=True)
class Divergences:
    """The fields of `Divergence` for n pairs, each an array [n]."""

    kl_lower: FloatArray
    p_covered: FloatArray
    q_covered: FloatArray
    jsd_lower: FloatArray
    jsd_upper: FloatArray
    moved: FloatArray
    shared: IntArray
    nonfinite: IntArray

    def rows(self, which: BoolArray) -> Divergences:
        """Those of some of the pairs."""
        return Divergences(*(getattr(self, field.name)[which] for field in fields(self)))


def divergence(
    p: TopK, q: TopK, p_asked: TopK | None = None, q_asked: TopK | None = None, over: IntArray | None = None
) -> Divergence:
    """Divergence of Q from P for one pair of answers [k]; the arguments are those of `divergences`."""
    many = divergences(
        stack([p]),
        stack([q]),
        None if p_asked is None else stack([p_asked]),
        None if q_asked is None else stack([q_asked]),
        None if over is None else over[None, :],
    )
    return Divergence(
        kl_lower=float(many.kl_lower[0]),
        p_covered=float(many.p_covered[0]),
        q_covered=float(many.q_covered[0]),
        jsd_lower=float(many.jsd_lower[0]),
        jsd_upper=float(many.jsd_upper[0]),
        moved=float(many.moved[0]),
        shared=int(many.shared[0]),
        nonfinite=int(many.nonfinite[0]),
    )


def divergences(
    p: TopK, q: TopK, p_asked: TopK | None = None, q_asked: TopK | None = None, over: IntArray | None = None
) -> Divergences:
    """Divergences of n pairs of answers [n, k]; k may differ between the arguments.

    p_asked, q_asked: logprobs the side was asked for by id, beside its own top k (see `topk.merge`).
    over: ids [n, m] that the shared set I is limited to, so that two hits can be compared over the same ids.
    Raises ValueError where shapes do not fit each other.
    """
    n = len(p.ids)
    for side in (p, q, p_asked, q_asked):
        if side is not None and (side.ids.shape != side.logprobs.shape or side.ids.shape[:1] != (n,)):
            raise ValueError(f"expected {n} rows, got ids {side.ids.shape}, logprobs {side.logprobs.shape}")
    if over is not None and over.shape[:1] != (n,):
        raise ValueError(f"expected {n} rows of ids to compare over, got {over.shape}")
    parts = []
    for start in range(0, max(n, 1), _ROWS):
        rows = slice(start, start + _ROWS)
        told_p, told_q = p.rows(rows), q.rows(rows)
        if p_asked is not None:
            told_p = merge(told_p, p_asked.rows(rows))
        if q_asked is not None:
            told_q = merge(told_q, q_asked.rows(rows))
        parts.append(_bounds(told_p, told_q, None if over is None else over[rows]))
    return Divergences(
        kl_lower=np.concatenate([part.kl_lower for part in parts]),
        p_covered=np.concatenate([part.p_covered for part in parts]),
        q_covered=np.concatenate([part.q_covered for part in parts]),
        jsd_lower=np.concatenate([part.jsd_lower for part in parts]),
        jsd_upper=np.concatenate([part.jsd_upper for part in parts]),
        moved=np.concatenate([part.moved for part in parts]),
        shared=np.concatenate([part.shared for part in parts]),
        nonfinite=np.concatenate([part.nonfinite for part in parts]),
    )


def _bounds(p_told: TopK, q_told: TopK, over: IntArray | None) -> Divergences:
    p, q = columns(p_told), columns(q_told)
    unusable = np.logical_or.reduce([*defects(p).values(), *defects(q).values()])

    # Where Q tells each id of P: 1 + its column, or 0 for nowhere.
    place = np.zeros(p.ids.shape, dtype=np.uint16)
    for column, ids in enumerate(q.ids, start=1):
        np.maximum(place, (p.ids == ids) * np.uint16(column), out=place)
    place[p.ids < 0] = 0
    if over is not None:
        place[~(p.ids[:, None, :] == over.T[None, :, :]).any(axis=1)] = 0
    nowhere = np.zeros((1, len(unusable)))
    q_logprobs = np.take_along_axis(np.concatenate([nowhere - np.inf, q.logprobs]), place, axis=0)
    q_in = np.take_along_axis(np.concatenate([nowhere, q.probabilities]), place, axis=0)
    p_in = np.where(place > 0, p.probabilities, 0.0)
    p_rest = np.maximum(0.0, 1.0 - p_in.sum(axis=0))
    q_rest = np.maximum(0.0, 1.0 - q_in.sum(axis=0))

    with np.errstate(divide="ignore", invalid="ignore"):
        # From logprobs, so that a probability too small for a double still gives a finite ratio.
        ratio = p.logprobs - q_logprobs
        rest_ratio = np.log(p_rest / q_rest)
        kl_in = p_in * ratio
        kl_rest = p_rest * np.log(p_rest / np.maximum(q_rest, MASS_RESOLUTION))
        shared = (place > 0).sum(axis=0)
        # Two logprobs of -inf agree; their difference alone would be NaN.
        distance = np.where((place > 0) & (p.logprobs != q_logprobs), np.abs(ratio), 0.0)
        moved = distance.sum(axis=0) / np.where(shared > 0, shared, np.nan)
    kl_in[p_in == 0] = 0.0
    kl_rest[p_rest == 0] = 0.0
    js_in = js(p_in, q_in, ratio).sum(axis=0)
    jsd_lower = np.minimum(_LN2, js_in + js(p_rest, q_rest, rest_ratio))
    jsd_upper = np.clip(js_in + _LN2 / 2 * (p_rest + q_rest), jsd_lower, _LN2)
    return Divergences(
        kl_lower=np.where(unusable, np.nan, np.maximum(0.0, kl_in.sum(axis=0) + kl_rest)),
        p_covered=np.where(unusable, np.nan, p.probabilities.sum(axis=0)),
        q_covered=np.where(unusable, np.nan, q.probabilities.sum(axis=0)),
        jsd_lower=np.where(unusable, np.nan, jsd_lower),
        jsd_upper=np.where(unusable, np.nan, jsd_upper),
        moved=np.where(unusable, np.nan, moved),
        shared=shared,
        nonfinite=np.add.reduce([*odd_logprobs(p), *odd_logprobs(q)]),
    )


def js(p: FloatArray, q: FloatArray, log_ratio: FloatArray) -> FloatArray:
    """The term of each id in JSD(P, Q), in nats, from arrays of one shape; log_ratio is ln(p / q).

    With t = p + q and s = (p - q) / t the definition is t/4 [(1 + s) ln(1 + s) + (1 - s) ln(1 - s)], which is
    t/4 [s ln(p / q) + ln(4 p q / t^2)]: one logarithm, and exactly 0 where p equals q.
    """
    total = p + q
    with np.errstate(divide="ignore", invalid="ignore"):
        s = (p - q) / total
        value = total / 4 * (s * log_ratio + np.log(4 * p * q / (total * total)))
    # Where one side is (nearly) all of t the term has its limit, t ln(2) / 2; below 1e-150 it is nothing.
    value = np.where(np.abs(s) == 1, _LN2 / 2 * total, value)
    return np.where(total > 1e-150, np.maximum(0.0, value), 0.0)
