"""What the impact probe shows beside its verdict: three answers to each prompt, and figures over prompts."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fidelity.judging import changes
from fidelity.judging.changes import CHANGED, SAME
from fidelity.observations import Answer, Observation
from fidelity.probes.patterns import Pattern
from fidelity.verdicts import Reading

POSITIONS = (1, 2, 4, 8, 16, 32)
"""Output tokens, from 1, at which answers are held against each other."""

LONG = 8
"""Tokens from which it can be told whether an answer that begins otherwise goes on as the cold one."""


@dataclass(frozen=True)
class Trio:
    """One prompt: its cold answer, the second cold one (`floor` is how that differs) and the hit (`change`
    is how that does, `rules` what it breaks). `why_missed` is why the hit proves nothing."""

    prompt: str
    expected: str
    cold: Answer
    again: Answer
    hit: Observation
    rules: tuple[str, ...]
    floor: str
    change: str
    why_missed: str | None

    @property
    def harmed(self) -> bool:
        return self.change == CHANGED


def readings(pattern: Pattern, trios: Sequence[Trio]) -> Iterator[Reading]:
    """What is shown of a pattern: shares of answers, counts, and margins in nats (medians)."""
    if not trios:
        return

    def share(name: str, test: Callable[[Trio], bool]) -> Reading:
        return Reading(name, sum(map(test, trios)) / len(trios))

    yield Reading("answers", len(trios))
    yield share("share changed, hit", lambda one: one.harmed)
    yield share("share changed, second cold send", lambda one: one.floor == CHANGED)
    yield share("share other than cold, near-ties included, hit", lambda one: one.change != SAME)
    if pattern.known:
        yield share("accuracy, cold", lambda one: changes.right(one.cold, one.expected))
        yield share("accuracy, hit", lambda one: changes.right(one.hit.answer, one.expected))
    if pattern.parses:
        for name, count in (
            ("cold", sum(not changes.parses(one.cold, calls=pattern.chat) for one in trios)),
            ("hit", sum(not changes.parses(one.hit.answer, calls=pattern.chat) for one in trios)),
        ):
            yield Reading(f"parse failures, {name}", count)
    if pattern.letters:
        yield from _letter_readings(trios)
    if any(len(one.cold.output_ids) > 1 for one in trios):
        yield from _agreement(trios)


def _letter_readings(trios: Sequence[Trio]) -> Iterator[Reading]:
    cold, again, hits = zip(*((one.cold, one.again, one.hit.answer) for one in trios), strict=True)
    for name, answers in (("second cold send", again), ("hit", hits)):
        other = sum(_order(one) != _order(answer) for one, answer in zip(cold, answers, strict=True))
        yield Reading(f"rankings of the letters changed, {name}", other)
    for name, answers in (("cold", cold), ("hit", hits)):
        margins = [found for answer in answers if (found := changes.margin(answer)) is not None]
        if margins:
            yield Reading(f"margin of the first letter, {name}, median", statistics.median(margins), "nat")


def _order(answer: Answer) -> list[int]:
    return [token for token, _ in changes.ranking(answer)]


def _agreement(trios: Sequence[Trio]) -> Iterator[Reading]:
    for position in POSITIONS:
        long = [one for one in trios if len(one.cold.output_ids) >= position]
        if not long:
            break
        for name, same in (
            ("hit", sum(_at(one.cold, position) == _at(one.hit.answer, position) for one in long)),
            ("second cold send", sum(_at(one.cold, position) == _at(one.again, position) for one in long)),
        ):
            yield Reading(f"same token as cold at position {position}, {name}", same / len(long))
    long = [one for one in trios if len(one.cold.output_ids) >= LONG]
    parted = [one for one in long if one.change != SAME and one.hit.answer.output_ids]
    if parted:
        again = sum(changes.re_anchored(one.cold.output_ids, one.hit.answer.output_ids) for one in parted)
        yield Reading("changed answers whose second half is as cold again", again / len(parted))


def _at(answer: Answer, position: int) -> int | None:
    ids = answer.output_ids
    return ids[position - 1] if position <= len(ids) else None
