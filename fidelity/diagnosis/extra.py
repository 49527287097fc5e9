"""Which cell that was not measured would tell one explanation from another."""

from collections.abc import Sequence
from dataclasses import dataclass

from fidelity.diagnosis.conditions import Condition, Path
from fidelity.diagnosis.explanations import BOUNDARY, COMMON_UNSEEN, KV, STATE, Explanation

LEAST_GAP = 0.3
"""Difference of two expectations that is worth a further cell."""


@dataclass(frozen=True)
class Extra:
    """A cell, and the option that adds it."""

    flag: str
    at: Condition


def _extra(flag: str, name: str, path: Path, tail: int = 0, rows: int = 1) -> Extra:
    return Extra(flag, Condition(name, path, "clean", "", tail, rows))


EXTRAS = (
    _extra("--probe decode", "single-request decode", "decode"),
    _extra("--probe checkpoint", "one token past the same checkpoint", "checkpoint", 1),
    _extra("--probe checkpoint", "two tokens past the same checkpoint", "checkpoint", 2),
    _extra("--tail 1", "a hit at tail 1", "hit", 1),
    _extra("--tail 2", "a hit at tail 2", "hit", 2),
    _extra("--control 33", "a hit at tail 33", "hit", 33),
    _extra("--probe batch", "a batch of 8 rows", "batch", 1, 8),
    _extra("--probe batch", "a row alone", "batch", 1, 1),
    _extra("--probe batch", "hits on what a batch filled", "ragged fill", rows=2),
    _extra("--probe draft", "the draft's acceptance", "acceptance"),
)


def next_cell(one: Explanation, rival: Explanation | None, found: Sequence[Condition]) -> str:
    """In words, with the option that adds it: the unmeasured cell on which the two differ most."""
    if rival is None:
        return "nothing else explains these cells nearly as well"
    if COMMON_UNSEEN in (one.name, rival.name):
        return f"--reference RUN would tell it from '{rival.name}': only it sees what cold answers share"
    if BOUNDARY in (one.name, rival.name) and not any(at.name.startswith("sweep") for at in found):
        return f"--sweep would tell it from '{rival.name}': it maps lengths on both sides of a boundary"
    known = {(at.path, at.tail, at.rows) for at in found}
    gaps = [
        (abs(one.expect(extra.at) - rival.expect(extra.at)), -place, extra)
        for place, extra in enumerate(EXTRAS)
        if (extra.at.path, extra.at.tail, extra.at.rows) not in known
    ]
    gap, _, best = max(gaps, default=(0.0, 0, EXTRAS[0]))
    if gap < LEAST_GAP and {one.name, rival.name} == {STATE, KV}:
        return (
            f"an attention-only model on this server would tell it from '{rival.name}': that stores KV alone"
        )
    if gap < LEAST_GAP:
        return f"more prompts (--prompts) or a map of all tails (--sweep) may tell it from '{rival.name}'"
    own, other = "corrupt", "clean"
    if one.expect(best.at) < rival.expect(best.at):
        own, other = other, own
    return f"{best.flag} would tell it from '{rival.name}': {best.at.name} {own} here, {other} there"
