"""The verdict of --exact: on a deterministic server cold, hit and decode must be bit-identical.

Log-probabilities are compared as the numbers they were written as, without any tolerance. A value that is
not a number is identical to nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fidelity.evidence import MISMATCHED, not_cold
from fidelity.manifest import ArmRecord
from fidelity.observations import Answer, Observation, Row
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.plan_probes import ProbeName
from fidelity.stats.rates import clopper_pearson
from fidelity.verdicts import FAIL, NOT_EXERCISED, PASS, CellVerdict, Example, Reading

T = TypeVar("T")

PROBE = "exact"
COLD, HITS, DECODE = "cold again", "hits", "decode"

SOURCES: dict[str, tuple[ProbeName, ...]] = {
    COLD: ("resend",),
    HITS: ("resend", "sweep"),
    DECODE: ("decode",),
}
"""The probes that send what each cell compares."""

EXAMPLES = 3
SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Difference:
    """The first value in which two answers differ: `place` counts tokens from the prompt's first one, `what`
    is compared, in words; `first` and `second` are ids, or logprobs in nats, None where one has no more."""

    place: int
    what: str
    first: float | None
    second: float | None

    def words(self, names: tuple[str, str]) -> str:
        """`token 193, logprob of id 5: -0.1 cold, -0.2 hit, difference 0.1`."""
        both = f"{_shown(self.first)} {names[0]}, {_shown(self.second)} {names[1]}"
        said = f"token {self.place}, {self.what}: {both}"
        if isinstance(self.first, float) and isinstance(self.second, float):
            return f"{said}, difference {abs(self.second - self.first):.3g} nat"
        return said


@dataclass(frozen=True)
class Pair:
    """Two answers that must be identical; `names` tell which they are. `missed`: why they say nothing."""

    first: Observation
    second: Observation
    names: tuple[str, str]
    difference: Difference | None = None
    missed: str | None = None


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """The cells of --exact from the observations of all of an arm's probes: one for each path that a probe
    of the plan takes, all of them where none does."""
    groups: dict[tuple[str, int, str, int], list[Observation]] = {}
    for obs in observations:
        if obs.temperature == 0 and obs.group:
            groups.setdefault((obs.probe, obs.visit, obs.group, obs.attempt), []).append(obs)
    able = [name for name in plan.selected if name not in record.skipped]
    wanted = [cell for cell, probes in SOURCES.items() if any(name in able for name in probes)]
    pairs: dict[str, Callable[[Sequence[Observation]], Iterator[Pair]]] = {
        COLD: _cold_again,
        HITS: _hits,
        DECODE: _decode,
    }
    return [
        _cell(arm.name, name, [pair for group in groups.values() for pair in pairs[name](group)], limits)
        for name in wanted or SOURCES
    ]


def _cold_again(group: Sequence[Observation]) -> Iterator[Pair]:
    for cold, other in _against_cold(group, "cold2"):
        salted = "another salt makes other tokens" if other.shared else None
        yield _pair(cold, other, ("cold", "cold again"), salted or not_cold(cold) or not_cold(other), answers)


def _hits(group: Sequence[Observation]) -> Iterator[Pair]:
    for cold, hit in _against_cold(group, "hit"):
        missed = not_cold(cold)
        if hit.answer.failed:
            missed = "the request failed"
        elif hit.answer.mismatched:
            missed = MISMATCHED
        elif not hit.answer.cached_tokens and not hit.answer.error:
            missed = "no hit: the server reports no cached tokens"
        yield _pair(cold, hit, ("cold", "hit"), missed, answers)


def _decode(group: Sequence[Observation]) -> Iterator[Pair]:
    roles = {obs.role: obs for obs in group}
    decode, clean, again = (roles.get(role) for role in ("decode", "rescore", "rescore2"))
    if decode is None:
        return
    if clean is None:
        yield Pair(decode, decode, ("decode", "clean prefill"), missed="no clean prefill of the answer")
        return
    yield _pair(decode, clean, ("decode", "clean prefill"), _unscored(decode, clean), scores)
    if again is not None:
        names = ("clean prefill", "clean prefill again")
        yield _pair(clean, again, names, _unscored(clean, again), scores)


def _against_cold(group: Sequence[Observation], role: str) -> Iterator[tuple[Observation, Observation]]:
    cold = next((obs for obs in group if obs.role == "cold"), None)
    if cold is not None:
        yield from ((cold, obs) for obs in group if obs.role == role)


def _unscored(*sends: Observation) -> str | None:
    for obs in sends:
        if obs.answer.failed:
            return "the request failed"
        if obs.answer.mismatched:
            return MISMATCHED
    return None


def _pair(
    first: Observation,
    second: Observation,
    names: tuple[str, str],
    missed: str | None,
    compare: Callable[[Observation, Observation], Difference | None],
) -> Pair:
    if missed:
        return Pair(first, second, names, missed=missed)
    return Pair(first, second, names, compare(first, second))


def answers(cold: Observation, other: Observation) -> Difference | None:
    """The first difference of two answers to one prompt, position by position: the top rows (ids, then
    logprobs), the id, its logprob."""
    one, two = cold.answer, other.answer
    for step in range(max(_steps(one), _steps(two), 1)):
        place = cold.length + step
        row = _rows(place, _at(one.top, step), _at(two.top, step))
        if row is not None:
            return row
        if _at(one.output_ids, step) is None or _at(one.output_ids, step) != _at(two.output_ids, step):
            return Difference(place, "id", _at(one.output_ids, step), _at(two.output_ids, step))
        if not _same(_at(one.logprobs, step), _at(two.logprobs, step)):
            what = f"logprob of id {one.output_ids[step]}"
            return Difference(place, what, _at(one.logprobs, step), _at(two.logprobs, step))
    return None


def scores(generated: Observation, clean: Observation) -> Difference | None:
    """The first token whose logprob differs between what was generated, or scored, and a clean prefill."""
    own = generated.answer.scored if generated.role != "decode" else generated.answer.logprobs
    again = clean.answer.scored
    # A scored prompt holds the answer that was generated after the prompt of `start` tokens.
    start = clean.length - len(again)
    for step in range(max(len(own), len(again), 1)):
        if not _same(_at(own, step), _at(again, step)):
            return Difference(start + step, "logprob of the token", _at(own, step), _at(again, step))
    return None


def _rows(place: int, one: Row | None, two: Row | None) -> Difference | None:
    one, two = one or [], two or []
    for rank in range(max(len(one), len(two))):
        first, second = _at(one, rank), _at(two, rank)
        ids = None if first is None else first[0], None if second is None else second[0]
        if ids[0] != ids[1] or first is None or second is None:
            return Difference(place, f"id {rank + 1} of the top row", *ids)
        if not _same(first[1], second[1]):
            return Difference(place, f"logprob of id {ids[0]}", first[1], second[1])
    return None


def _same(one: float | None, two: float | None) -> bool:
    """NaN equals nothing, and neither does what is not there."""
    return one is not None and two is not None and one == two


def _steps(answer: Answer) -> int:
    return max(len(answer.output_ids), len(answer.logprobs), len(answer.top))


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _shown(value: float | None) -> str:
    return "nothing" if value is None else repr(value)


def _cell(arm: str, name: str, pairs: Sequence[Pair], limits: Thresholds) -> CellVerdict:
    compared = [pair for pair in pairs if pair.missed is None]
    differ = [pair for pair in compared if pair.difference is not None]
    missed = Counter(pair.missed for pair in pairs if pair.missed is not None)
    state = PASS
    reason = f"{len(compared)} answers compared, all bit-identical"
    if differ:
        state = FAIL
        reason = f"{len(differ)} of {len(compared)} answers are not bit-identical: first {_words(differ[0])}"
    elif not compared:
        state, reason = NOT_EXERCISED, missed.most_common(1)[0][0] if missed else "nothing was compared"
    lower, upper = clopper_pearson(len(differ), len(compared), limits.confidence)
    sizes = [size for pair in differ if (size := _size(pair.difference)) is not None]
    readings = [Reading("answers compared", len(compared)), Reading("answers that differ", len(differ))]
    if sizes:
        readings.append(Reading("|delta logprob| at the first difference, largest", max(sizes), "nat"))
    return CellVerdict(
        arm=arm,
        probe=PROBE,
        name=name,
        kind="suspect",
        state=state,
        reason=reason,
        why="a deterministic server computes a token alike on every path",
        prompts=len(pairs),
        exercised=len(compared),
        corrupt=len(differ),
        sends=len(compared),
        corrupt_sends=len(differ),
        rate_lower=lower,
        rate_upper=upper,
        missed=dict(missed),
        readings=tuple(readings),
        examples=tuple(_examples(differ)),
        notes=tuple(_words(pair) for pair in differ[:EXAMPLES]),
    )


def _words(pair: Pair) -> str:
    return "" if pair.difference is None else f"{pair.first.prompt}, {pair.difference.words(pair.names)}"


def _size(difference: Difference | None) -> float | None:
    if difference is None or not isinstance(difference.first, float):
        return None
    size = abs(difference.first - difference.second) if isinstance(difference.second, float) else None
    return size if size == size else None


def _examples(differ: Sequence[Pair]) -> Iterator[Example]:
    for pair in differ[:EXAMPLES]:
        yield Example(
            prompt=pair.first.prompt,
            expected=pair.first.expected_text,
            cold=(pair.first.answer.text or "")[:SHOWN_CHARACTERS],
            other=(pair.second.answer.text or "")[:SHOWN_CHARACTERS],
            cached_tokens=pair.second.answer.cached_tokens,
            tail=pair.second.tail_seen,
            why=_words(pair),
            order=pair.second.order,
        )
