"""Cold answers against the same prompt with more tokens behind it, where cold and hit share their last step.

By causality the tokens that follow change nothing of what the prompt's last token predicts; they only put
that token into a larger step of the prefill. So the scores of the longer prompt at that place are what the
cold answer should be. Judged as the hits of a cold send computed at once are: first token, then JSD and
mean |delta logprob| against the control at the same position. A shift beyond the control's is no pass; it
fails beyond thresholds.elevated and elevated_move, as the control's step can run the longer prompt's kernels
and the suspect's others: the control then shows nothing of what rounding does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fidelity import shift_judge
from fidelity.cell_judge import judge_hits
from fidelity.comparison import Sends, Tie, compare
from fidelity.evidence import MISMATCHED, Group, not_cold
from fidelity.observations import Observation
from fidelity.plan import Thresholds
from fidelity.probes.cells import Cell
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS, CellVerdict

NAME = "in a longer prompt"
MISSING = "no longer prompt was scored"


def judge(
    arm: str, cells: Sequence[tuple[Cell, Sends]], tie: Tie, limits: Thresholds, seed: int
) -> dict[str, CellVerdict]:
    """One verdict for each cell of one arm, by the cell's name; each comes with its cold floor. A cell none
    of whose groups has the longer send is left out."""
    known = [(_named(cell), _against_longer(floor.groups, tie.threshold)) for cell, floor in cells]
    measured = [
        shift_judge.measure(named, sends, floor)
        for (named, sends), (_, floor) in zip(known, cells, strict=True)
    ]
    wide = limits.model_copy(update={"least_margin": limits.elevated, "least_move": limits.elevated_move})
    shifts = shift_judge.find_shifts({arm: measured}, limits, seed)
    large = shift_judge.find_shifts({arm: measured}, wide, seed)
    found = {}
    for (cell, _), (named, sends), size in zip(cells, known, measured, strict=True):
        if not sends.judged:
            continue
        by_rate = judge_hits(arm, named, sends, tie, limits)
        key = arm, named.name
        verdict = shift_judge.apply(by_rate, size, shifts.get(key, []), limits)
        beyond = shift_judge.apply(by_rate, size, large.get(key, []), wide)
        if beyond.state == FAIL:
            verdict = beyond
        elif verdict.state == FAIL:
            reason = f"{verdict.reason}; kernels for one token and for many can be as far apart"
            verdict = replace(verdict, state=INCONCLUSIVE, reason=reason)
        found[cell.name] = replace(verdict, tail=None, examples=())
    return found


def lay_over(verdict: CellVerdict, longer: Mapping[str, CellVerdict], why: str) -> CellVerdict:
    """The verdict of a suspect's hits where `why` they agree with cold whatever the step does: no pass
    without a longer prompt that agrees as well."""
    if verdict.state != PASS:
        return verdict
    beside = longer.get(verdict.name)
    if beside is None:
        return replace(verdict, state=INCONCLUSIVE, reason=f"{why}; {MISSING}")
    if beside.state == FAIL:
        reason = f"cold and hit agree, but share a step that the longer prompt contradicts: {beside.reason}"
        return replace(verdict, state=INCONCLUSIVE, reason=reason)
    return replace(verdict, reason=f"{verdict.reason}; the shared step is judged by '{beside.name}'")


def _named(cell: Cell) -> Cell:
    return replace(cell, name=f"{cell.name} {NAME}", why="cold against the scores of a longer prompt")


def _against_longer(groups: Sequence[Group], near_tie: float) -> Sends:
    """Each cold send, held against what the longer prompt says."""
    trusted = [
        Group(group.prompt, _as_answer(group.longer), hits=[group.cold], last=group.last)
        for group in groups
        if group.longer is not None
    ]
    pairs = [(group, cold) for group in trusted for cold in group.hits]
    return compare(trusted, pairs, lambda group, cold: _missed(group.cold, cold), near_tie)


def _as_answer(longer: Observation) -> Observation:
    """The scores at the prompt's last token, as an answer of one token."""
    row = longer.answer.scored_top[0] if longer.answer.scored_top else []
    best = max(row, key=lambda pair: pair[1], default=None)
    answer = replace(
        longer.answer,
        output_ids=[best[0]] if best else [],
        logprobs=[best[1]] if best else [],
        top=[row] if best else [],
        text=None,
    )
    return replace(longer, answer=answer)


def _missed(longer: Observation, cold: Observation) -> str | None:
    """Why the two cannot be held against each other; None where they can."""
    if longer.answer.failed:
        return "the longer prompt's request failed"
    if longer.answer.mismatched:
        return f"of the longer prompt: {MISMATCHED}"
    if longer.answer.cached_tokens:
        return "the longer prompt was served from the cache"
    return not_cold(cold)
