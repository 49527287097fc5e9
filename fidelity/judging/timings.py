"""What the speed probe timed, by quantity: observations in, values out."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fidelity.engines.stream import time_per_token, tokens_per_second
from fidelity.observations import Observation
from fidelity.probes.speed import PAIR, SINGLE
from fidelity.scoring import corrupt_rules
from fidelity.stats.topk import FloatArray

TTFT_COLD, TTFT_HIT = "TTFT cold", "TTFT of a cache hit"
TPOT, SINGLE_RATE = "TPOT", "tokens/s, one request"
MS, PER_SECOND = "ms", "tok/s"

ONE_PIECE = "the stream came in one piece"

Values = dict[tuple[int, str], float]
"""(visit, what was sent) -> value."""


@dataclass(frozen=True)
class Timings:
    """Of one arm. `values` by quantity, in `units`; `missed` counts why timed sends gave no value, and `sent`
    how many were timed; `discarded` were for warming up."""

    values: dict[str, Values]
    units: dict[str, str]
    missed: Counter[str]
    sent: int
    discarded: int


def timings(observations: Sequence[Observation]) -> Timings:
    """Each quantity in the order of the table. Of an attempt that failed nothing is kept."""
    values: dict[str, Values] = defaultdict(dict)
    units: dict[str, str] = {}
    missed: Counter[str] = Counter()
    groups: dict[tuple[int, str], dict[int, list[Observation]]] = defaultdict(dict)
    timed = [obs for obs in observations if obs.role in ("cold", "hit", "single", "wave")]
    for obs in timed:
        groups[obs.visit, obs.group].setdefault(obs.attempt, []).append(obs)
    for key, attempts in groups.items():
        found = attempts[max(attempts)]
        for name, unit, value in _quantities(found, missed):
            values[name][key] = value
            units[name] = unit
    order = sorted(values, key=_place)
    discarded = sum(obs.role in ("check", "rescore", "warm", "prime") for obs in observations)
    return Timings({name: values[name] for name in order}, units, missed, len(timed), discarded)


def corrupt_answers(observations: Sequence[Observation]) -> tuple[int, int, str]:
    """Of the warm-up's generated answers: how many are corrupt, of how many, and why the first is."""
    groups: dict[tuple[int, str, int], dict[str, Observation]] = defaultdict(dict)
    for obs in observations:
        if obs.role in ("check", "rescore"):
            groups[obs.visit, obs.group, obs.attempt][obs.role] = obs
    checked = [roles for roles in groups.values() if "check" in roles and not roles["check"].answer.failed]
    rules = [corrupt_rules(roles["check"], roles.get("rescore")) for roles in checked]
    first = next((found[0] for found in rules if found), "")
    return sum(map(bool, rules)), len(checked), first


def by_prompt(values: Values) -> dict[str, float]:
    """What was sent -> its geometric mean over the visits."""
    return {key: _mean([value for (_, own), value in values.items() if own == key]) for _, key in values}


def paired(first: Values, second: Values, visit: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Values of two arms by prompt, over the visits (or of one) that both have."""
    common = {key for key in first.keys() & second.keys() if visit in (None, key[0])}
    one, other = (by_prompt({key: arm[key] for key in sorted(common)}) for arm in (first, second))
    return np.array(list(one.values())), np.array(list(other.values()))


def visits_of(values: Mapping[str, Values]) -> list[int]:
    """The visits with any value."""
    return sorted({visit for found in values.values() for visit, _ in found})


def _quantities(found: Sequence[Observation], missed: Counter[str]) -> Iterator[tuple[str, str, float]]:
    failed = sum(obs.answer.failed for obs in found)
    if failed:
        missed["the request failed"] += failed
        return
    company = sum(obs.alone is False for obs in found)
    if company:
        missed["other requests ran at the same time"] += company
        return
    cell = found[0].cell
    if cell == PAIR:
        yield from _pair(found, missed)
    elif cell == SINGLE:
        yield from _decode(found, missed, TPOT, SINGLE_RATE)
    else:
        yield from _decode(found, missed, f"TPOT at {cell}", f"tokens/s at {cell}")


def _pair(found: Sequence[Observation], missed: Counter[str]) -> Iterator[tuple[str, str, float]]:
    for obs in found:
        if obs.answer.first_token is None:
            missed["no token came"] += 1
        elif obs.role == "cold" and obs.answer.cached_tokens:
            missed["a cold send was served from the cache"] += 1
        elif obs.role == "cold":
            yield TTFT_COLD, MS, obs.answer.first_token * 1000
        elif not obs.answer.cached_tokens:
            missed["a re-send was not served from the cache"] += 1
        else:
            yield TTFT_HIT, MS, obs.answer.first_token * 1000


def _decode(
    found: Sequence[Observation], missed: Counter[str], tpot: str, rate: str
) -> Iterator[tuple[str, str, float]]:
    wanted = [obs.max_new_tokens for obs in found]
    if [len(obs.answer.output_ids) for obs in found] != wanted:
        missed["fewer tokens came than were asked for"] += 1
        return
    steps = [step for obs in found if (step := time_per_token(obs.answer)) is not None]
    if len(steps) < len(found):
        missed[ONE_PIECE] += 1
    else:
        yield tpot, MS, statistics.median(steps) * 1000
    yield rate, PER_SECOND, tokens_per_second([obs.answer for obs in found])


def _place(name: str) -> tuple[int, int]:
    known = (TTFT_COLD, TTFT_HIT, TPOT, SINGLE_RATE)
    if name in known:
        return known.index(name), 0
    return len(known), int(name.rpartition("=")[2])


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
