"""The verdict of the sweep: one cell for each position, with a map of its tails.

One send at each tail decides no rate, so a row is judged as a whole, and a single send counts as corrupt only
where no rounding explains it (`corrupt_reason`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fidelity.compare import broken_rules, compare_first_token
from fidelity.evidence import Group, groups_of, missed
from fidelity.judging.few import count_faces
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan, Thresholds
from fidelity.probes.cells import Cell
from fidelity.single_send import alone_is_no_proof, corrupt_reason, token_move
from fidelity.stats.rates import clopper_pearson
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Example,
    Reading,
)

CORRUPT, MISSED, NEAR, GONE, AGREES = "X", "?", "~", "-", "."
SAID = {
    CORRUPT: "corrupt tails",
    MISSED: "path not taken",
    NEAR: "near-tie",
    GONE: "not left by the guard",
    AGREES: "clean",
}
"""What each character of a map means; worst first."""

WHY = (
    "one character for each tail: . agrees, ~ near-tie, X corrupt, ? path not taken, - not left by the guard"
)
SMALLEST_CORRUPT, LARGEST_CORRUPT = "smallest corrupt tail", "largest corrupt tail"
SMALLEST_CLEAN = "smallest clean tail"
EXAMPLES = 3
SHOWN_CHARACTERS = 80


LONE = "; one such move alone is no proof"


@dataclass(frozen=True)
class Spot:
    """One prompt at one tail: its character in the map, and why it is no `.`"""

    tail: int
    mark: str
    why: str = ""
    group: Group | None = None


def judge(
    plan: RunPlan, arm: Arm, record: ArmRecord, observations: Sequence[Observation], limits: Thresholds
) -> list[CellVerdict]:
    """One cell for each position, by how many tokens precede it."""
    groups: dict[tuple[int, int], list[Group]] = defaultdict(list)
    for group in groups_of(observations):
        if group.cold.tail is not None:
            groups[group.cold.length - group.cold.tail, group.cold.tail].append(group)
    rows: dict[int, list[Spot]] = defaultdict(list)
    for position, tail in sorted({(place, tail) for place, tail in record.sweep} | set(groups)):
        found = groups[position, tail]
        spots = [spot for group in found if (spot := find_spot(position, tail, group, record, limits))]
        lacking = plan.sweep.prompts - sum(group.last for group in found)
        spots += [Spot(tail, MISSED, "nothing was measured")] * lacking
        rows[position] += spots
    unsure_alone = plan.target.shared
    # Single moves at one tail of several positions are no noise.
    moved = Counter(spot.tail for spots in rows.values() for spot in spots if spot.mark == CORRUPT)
    found_rows = [
        _row(arm.name, *row, limits, again=moved, unsure_alone=unsure_alone) for row in rows.items()
    ]
    return found_rows or [_nothing(arm.name)]


def find_spot(position: int, tail: int, group: Group, record: ArmRecord, limits: Thresholds) -> Spot | None:
    """What one prompt at one tail shows; None for an attempt that a failed request ended, unless it is
    corrupt or the server's own fault."""
    cell = Cell("", "suspect", position + tail, tail, "")
    structural = record.min_tail > tail
    hit = group.hits[0] if group.hits else None
    corrupt = _corrupt(group, hit, limits)
    if corrupt and not _noise(group, limits):
        return Spot(tail, CORRUPT, corrupt, group)
    if not group.last:
        crashed = any(one.answer.crashed for one in (group.cold, *group.hits))
        return Spot(tail, MISSED, "the server failed a request", group) if crashed else None
    if hit is None:
        return Spot(tail, MISSED, "the request failed", group)
    if structural and hit.tail_seen is not None and hit.tail_seen < record.min_tail:
        short = f"the guard leaves no tail under {record.min_tail}, yet {hit.tail_seen} was recomputed"
        return Spot(tail, CORRUPT, short, group)
    elsewhere = missed(group, hit, cell, structural=structural)
    if elsewhere:
        return Spot(tail, MISSED, elsewhere, group)
    if corrupt:
        return Spot(tail, MISSED, "the cold answer differs from itself as much", group)
    agreement = compare_first_token(group.cold.answer, hit.answer, limits.near_tie)
    if agreement.kind == "unreadable":
        return Spot(tail, MISSED, "no readable answer to compare", group)
    if agreement.kind != "same":
        return Spot(tail, NEAR, f"regret {agreement.regret:.2g} nat", group)
    return Spot(tail, GONE if structural else AGREES, group=group)


def is_lone_move(corrupt: Sequence[Spot], limits: Thresholds) -> bool:
    """Is a single spot corrupt, by a move of its logprobs that alone is no proof?"""
    if len(corrupt) != 1:
        return False
    group = corrupt[0].group
    if group is None or not group.hits or corrupt[0].why != _corrupt(group, group.hits[0], limits):
        return False
    return alone_is_no_proof(group.cold.answer, group.hits[0].answer, limits.near_tie)


def _corrupt(group: Group, other: Observation | None, limits: Thresholds) -> str:
    """Why an answer, or the cold one itself, is corrupt."""
    rules = group.cold_rules(limits.near_tie)
    if rules:
        return f"the cold answer is broken: {rules[0]}"
    if other is None or other.answer.failed:
        return ""
    return corrupt_reason(group.cold.answer, other.answer, limits.near_tie, rules)


def _noise(group: Group, limits: Thresholds) -> bool:
    """Does a sound second cold answer differ as much? A broken one is no noise."""
    if group.cold2 is None or group.cold_rules(limits.near_tie):
        return False
    broken = any(broken_rules(one.answer, limits.near_tie) for one in (*group.hits, group.cold2))
    return not broken and bool(_corrupt(group, group.cold2, limits))


def _row(
    arm: str,
    position: int,
    spots: Sequence[Spot],
    limits: Thresholds,
    *,
    again: Mapping[int, int],
    unsure_alone: bool,
) -> CellVerdict:
    """`again`: how often each tail is corrupt, over all positions."""
    marks: dict[int, str] = {}
    worst = list(SAID)
    for spot in spots:
        marks[spot.tail] = min(marks.get(spot.tail, AGREES), spot.mark, key=worst.index)
    corrupt = [spot for spot in spots if spot.mark == CORRUPT]
    lost = [spot for spot in spots if spot.mark == MISSED]
    exercised = len(spots) - len(lost)
    lower, upper = clopper_pearson(len(corrupt), exercised, limits.confidence)
    state = PASS
    reason = f"0 corrupt of {exercised} hits: at most {upper * 100:.1f}% at {limits.confidence * 100:g}%"
    hits = [spot.group.hits[0] for spot in spots if spot.group and spot.group.hits]
    silent = sum(hit.alone is None for hit in hits)
    if corrupt:
        lone = is_lone_move(corrupt, limits) and again[corrupt[0].tail] == 1
        state = INCONCLUSIVE if lone else FAIL
        reason = f"corrupt at {_tails(marks, CORRUPT)}: {corrupt[0].why}{LONE * (state == INCONCLUSIVE)}"
    elif lost:
        state = NOT_EXERCISED
        reason = f"the path was not taken at {_tails(marks, MISSED)}: {lost[0].why}"
    elif silent and unsure_alone:
        state = INCONCLUSIVE
        reason = f"nothing shows that {silent} of {len(hits)} hits were alone on the server (--assume-idle)"
    moves = [
        (spot.mark == CORRUPT, token_move(spot.group.cold.answer, spot.group.hits[0].answer))
        for spot in spots
        if spot.group and spot.group.hits and spot.mark != MISSED
    ]
    return CellVerdict(
        arm=arm,
        probe="sweep",
        name=f"from {position}",
        kind="suspect",
        state=state,
        reason=reason,
        why=WHY,
        prompts=len(spots),
        exercised=exercised,
        corrupt=len(corrupt),
        sends=len(hits),
        corrupt_sends=len(corrupt),
        rate_lower=lower,
        rate_upper=upper,
        rules=dict(Counter(spot.why.split(":")[0] for spot in corrupt)),
        faces=count_faces(hits),
        values=sum(hit.answer.values for hit in hits),
        missed=dict(Counter(spot.why for spot in lost)),
        examples=tuple(spot_examples(corrupt)),
        readings=(*_readings(moves), *_extremes(marks)),
        notes=(f"from {position}: {_map(marks)}", _words(marks)),
    )


def _readings(moves: Sequence[tuple[bool, float]]) -> Iterator[Reading]:
    for name, corrupt in (("clean", False), ("corrupt", True)):
        found = [move for bad, move in moves if bad is corrupt and move == move]
        if found:
            least = min(found) if corrupt else max(found)
            yield Reading(
                f"|delta logprob| at {name} tails, {'least' if corrupt else 'largest'}", least, "nat"
            )


def _extremes(marks: Mapping[int, str]) -> Iterator[Reading]:
    corrupt = [tail for tail, mark in marks.items() if mark == CORRUPT]
    clean = [tail for tail, mark in marks.items() if mark == AGREES]
    if corrupt:
        yield Reading(SMALLEST_CORRUPT, min(corrupt), "tokens")
        yield Reading(LARGEST_CORRUPT, max(corrupt), "tokens")
    if corrupt and clean:
        yield Reading(SMALLEST_CLEAN, min(clean), "tokens")


def _nothing(arm: str) -> CellVerdict:
    return CellVerdict(
        arm=arm,
        probe="sweep",
        name="map",
        kind="suspect",
        state=NOT_EXERCISED,
        reason="nothing was measured",
    )


def _map(marks: Mapping[int, str]) -> str:
    """Runs of neighbouring tails, each with its characters: `1-5 X....  33 .`"""
    return "  ".join(
        f"{_span(first, last)} {''.join(marks[tail] for tail in range(first, last + 1))}"
        for first, last in _runs(marks)
    )


def _words(marks: Mapping[int, str]) -> str:
    said = [f"{SAID[mark]}: {_list(marks, mark)}" for mark in SAID if mark in marks.values()]
    return "; ".join(said if CORRUPT in marks.values() else ["no corrupt tails", *said])


def _tails(marks: Mapping[int, str], mark: str) -> str:
    many = sum(one == mark for one in marks.values()) > 1
    return f"tail{'s' if many else ''} {_list(marks, mark)}"


def _list(marks: Mapping[int, str], mark: str) -> str:
    found = [tail for tail, one in marks.items() if one == mark]
    return ", ".join(
        f"{first}, {last}" if last == first + 1 else _span(first, last, " to ")
        for first, last in _runs(found)
    )


def _runs(tails: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours."""
    ordered = sorted(tails)
    breaks = [place for place, (one, other) in enumerate(pairwise(ordered), 1) if other != one + 1]
    for start, end in pairwise([0, *breaks, len(ordered)]):
        yield ordered[start], ordered[end - 1]


def _span(first: int, last: int, between: str = "-") -> str:
    return str(first) if first == last else f"{first}{between}{last}"


def spot_examples(corrupt: Sequence[Spot]) -> Iterator[Example]:
    for spot in corrupt[:EXAMPLES]:
        if spot.group is None:
            continue
        cold = spot.group.cold
        hit = spot.group.hits[0] if spot.group.hits else cold
        yield Example(
            prompt=spot.group.prompt,
            expected=cold.expected_text,
            cold=(cold.answer.text or cold.answer.error or "")[:SHOWN_CHARACTERS],
            other=(hit.answer.text or hit.answer.error or "")[:SHOWN_CHARACTERS],
            cached_tokens=hit.answer.cached_tokens,
            tail=hit.tail_seen,
            why=spot.why,
            order=hit.order,
        )
