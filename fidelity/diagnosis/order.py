"""Do corrupt hits come later than clean ones of the same condition? What grows with use shows in that."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fidelity.compare import compare_first_token
from fidelity.observations import Answer, Observation
from fidelity.probes.batch import cell_name

SAME = ("resend", "sweep", "batch")
"""Probes whose hits, each alone (a batch of one row too), are one condition at one length and tail. The
checkpoint probe's end amid a template: some of these stay right under what makes others wrong, and all come
late."""


@dataclass(frozen=True)
class Order:
    """Of `pairs` of a corrupt and a clean hit of one condition, the share whose corrupt one came later; `p`
    one-sided."""

    pairs: int
    later: float
    p: float


def order_of_corruption(observations: Sequence[Observation], near_tie: float) -> Order | None:
    """None where no condition has both. Mann and Whitney's U (1947), summed over the conditions of n corrupt
    and m clean hits: z = sum(U - n m / 2) / sqrt(sum(n m (n + m + 1) / 12)), p = erfc(z / sqrt 2) / 2."""
    colds: dict[tuple[str, str, int], Observation] = {}
    strata: dict[tuple[int, int | None], list[tuple[int, bool]]] = defaultdict(list)
    for obs in observations:
        if obs.probe not in SAME:
            continue
        if obs.role == "cold":
            colds[obs.probe, obs.group + obs.prompt, obs.attempt] = obs
        elif obs.role == "hit" or (obs.role == "row" and obs.cell == cell_name(1)):
            cold = colds.get((obs.probe, obs.group + obs.prompt, obs.attempt))
            if cold is None or obs.answer.failed or not obs.answer.cached_tokens:
                continue
            agreement = compare_first_token(cold.answer, _first_token(obs.answer), near_tie)
            if agreement.kind != "unreadable":
                strata[obs.length, obs.tail_seen].append((obs.order, agreement.corrupt))
    return _sum_of(list(strata.values()))


def _first_token(answer: Answer) -> Answer:
    """What an answer of one token would have been: a row alone generates more, and those say nothing here."""
    if len(answer.output_ids) <= 1:
        return answer
    faces = answer.faces if answer.logprobs and not math.isfinite(answer.logprobs[0]) else {}
    first = {name: getattr(answer, name)[:1] for name in ("output_ids", "logprobs", "top", "asked")}
    return replace(answer, faces=faces, **first)


def _sum_of(strata: Sequence[Sequence[tuple[int, bool]]]) -> Order | None:
    pairs = later = 0
    variance = 0.0
    for hits in strata:
        corrupt = [place for place, bad in hits if bad]
        clean = [place for place, bad in hits if not bad]
        pairs += len(corrupt) * len(clean)
        later += sum(bad > good for bad in corrupt for good in clean)
        variance += len(corrupt) * len(clean) * (len(hits) + 1) / 12
    if not pairs:
        return None
    z = (later - pairs / 2) / math.sqrt(variance)
    return Order(pairs, later / pairs, math.erfc(z / math.sqrt(2)) / 2)
