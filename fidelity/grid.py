"""Which prefix cache explains the `cached_tokens` of a few sends.

A chain is one prompt in a fresh namespace, cold and again, and where prompts can be cut, a longer one behind
it. Every kind of cache that is known here, at every grid and smallest tail, predicts what each chain is
served; those that told something else fall out, and the next length is the one about which the rest disagree
most. What is left is the conclusion.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fidelity.engines.facts import PROMPT_END

FIRST, LONGEST = 331, 560
"""Tokens of the first chain's prompt, a prime, and of the longest."""

BEYOND = 72
"""Tokens by which the longer send of a chain is longer: more than any smallest tail that is looked for, so
that nothing but the cache holds it back."""

CHAINS = 4
MIN_TAILS = 64
SHORTEST = 160

PAGES, CHECKPOINTS, ALIGNED, ENDS = range(4)
_STRATEGY = ("attention only", "extra_buffer", "align", PROMPT_END)
_PARTS = ("whole pages", "recurrent checkpoints", "recurrent checkpoints, with every prefill cut there,")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Send:
    """One send: its chain (from 1), what it is of it, its tokens and those the server says came from the
    cache."""

    chain: int
    what: str
    sent: int
    cached: int | None

    @property
    def tail(self) -> int | None:
        """Tokens recomputed."""
        return None if self.cached is None else self.sent - self.cached


@dataclass(frozen=True)
class Found:
    """`grid` in tokens, `strategy` as in ServerFacts, None where not found; `least_tail` is the fewest tokens
    that a hit recomputed; `says` is the conclusion, and claims no more than the sends showed. `may_cut`: a
    cache that cuts cold prefills where a hit resumes would have shown the same counts."""

    kind: str
    says: str
    sends: tuple[Send, ...]
    grid: int | None = None
    strategy: str | None = None
    least_tail: int | None = None
    may_cut: bool = True


@dataclass(frozen=True)
class Caches:
    """A table of caches, a row each: `kind`, `grid`, and `tail`: the least that is left to compute (of ENDS,
    what an identical re-send leaves; 0: it is not served at all)."""

    kind: Ints
    grid: Ints
    tail: Ints

    def serves(self, length: int) -> tuple[Ints, Ints]:
        """What an identical re-send of `length` tokens is served after one send, and then a longer one."""
        whole = length // self.grid * self.grid
        point = np.where(self.kind == ALIGNED, (length - 1) // self.grid * self.grid, whole)
        reached = np.where(point <= length - self.tail, point, 0)
        pages = np.maximum(length - self.tail, 0) // self.grid * self.grid
        ends = np.where(self.tail > 0, length - self.tail, 0)
        again = np.select([self.kind == PAGES, self.kind == ENDS], [pages, ends], reached)
        return again, np.where(self.kind == ENDS, length, point)

    def only(self, rows: npt.NDArray[np.bool_]) -> "Caches":
        return Caches(self.kind[rows], self.grid[rows], self.tail[rows])

    @property
    def weight(self) -> npt.NDArray[np.float64]:
        """How likely each is beforehand: nearly every server leaves one token."""
        return np.where(self.tail == 1, 1.0, 1 / MIN_TAILS)


def known_caches() -> Caches:
    """Every kind at every grid up to the longest prompt and every smallest tail; what is the same twice
    (re-used to the last token but n) once."""
    kinds, grids, tails = (
        part.ravel()
        for part in np.meshgrid(range(3), range(1, LONGEST + 1), range(1, MIN_TAILS + 1), indexing="ij")
    )
    stepped = (grids > 1) | ((kinds == PAGES) & (tails == 1))
    ends = np.array([tail for tail in range(MIN_TAILS + 1) if tail != 1])
    return Caches(
        np.concatenate([kinds[stepped], np.full(ends.size, ENDS)]),
        np.concatenate([grids[stepped], np.ones(ends.size, dtype=np.int64)]),
        np.concatenate([tails[stepped], ends]),
    )


def lengths_of(length: int, *, cuts: bool) -> dict[str, int]:
    """The sends of a chain whose first prompt has `length` tokens: what they are, and their tokens."""
    return {"cold": length, "again": length} | ({"longer": length + BEYOND} if cuts else {})


def discover(run_chain: Callable[[int, int], list[Send]], *, cuts: bool, shared: int = 0) -> Found:
    """Find the grid by at most CHAINS chains. `run_chain(number, tokens)` sends one whose first prompt has
    about so many tokens, and tells how many there were; `cuts`: prompts are token ids, so that one can be
    longer than another and begin the same; `shared`: tokens at the start that other namespaces may have
    cached. Raises as `run_chain`."""
    caches, sends, length = known_caches(), list[Send](), FIRST
    for chain in range(1, CHAINS + 1):
        own = run_chain(chain, length)
        sends += own
        hits = [one.cached for one in own[1:]]
        if all(count is None for count in hits):
            return Found("not told", "the server does not tell its cached tokens", tuple(sends))
        if (own[0].cached or 0) > shared:
            served = f"a send in a fresh namespace was served {own[0].cached} tokens from the cache"
            return Found("contradictory", f"{served}: no send here is a cold one", tuple(sends))
        if any(one.cached for one in sends if one.what != "cold"):
            caches = caches.only(_agree(caches, own))
        elif length >= LONGEST:
            break
        if not caches.kind.size:
            said = "the counts contradict each other: no cache that is known here serves them"
            return Found("contradictory", said, tuple(sends))
        length = _next_length(caches, sends, longer=cuts)
    may_cut = bool(np.isin(caches.kind, (ALIGNED, ENDS)).any())
    return replace(_conclude(caches, sends, cuts=cuts), sends=tuple(sends), may_cut=may_cut)


def _agree(caches: Caches, own: Sequence[Send]) -> npt.NDArray[np.bool_]:
    """Rows that serve what was told. Servers that tell their hits alone leave out a miss."""
    again, longer = caches.serves(own[0].sent)
    rows = again == (own[1].cached or 0)
    if len(own) > 2:
        rows &= longer == (own[2].cached or 0)
    return np.asarray(rows)


def _next_length(caches: Caches, sends: Sequence[Send], *, longer: bool) -> int:
    """The length whose answers leave the least weight of caches together, on the average; among equals one
    that takes the cache in odd places. Where nothing was served yet, the longest."""
    if not any(one.cached for one in sends if one.what != "cold"):
        return LONGEST
    weight, used = caches.weight, {one.sent for one in sends}

    def left(length: int) -> tuple[float, int]:
        again, behind = caches.serves(length)
        _, answer = np.unique(again * (2 * LONGEST) + behind * longer, return_inverse=True)
        unserved = not (again.any() or (longer and behind.any()))
        return float((np.bincount(answer, weights=weight) ** 2).sum()) + unserved, length * 7919 % 401

    return min((length for length in range(SHORTEST, LONGEST + 1) if length not in used), key=left)


def _conclude(caches: Caches, sends: Sequence[Send], *, cuts: bool) -> Found:
    tails = [one.tail for one in sends if one.cached and one.what != "cold" and one.tail is not None]
    if not tails:
        said = f"never hits: none of {sum(one.what != 'cold' for one in sends)} sends behind the same prompt"
        most = max(one.sent for one in sends)
        return Found("never hits", f"{said} was served from the cache, in prompts of up to {most} tokens", ())
    least = min(tails)
    grids, kinds = sorted({int(one) for one in caches.grid}), sorted({int(one) for one in caches.kind})
    if grids == [1]:
        return _without_grid(caches, kinds, sends, least, cuts=cuts)
    if len(grids) > 1:
        said = f"the grid is one of {', '.join(map(str, grids[:8]))}: the sends do not tell them apart"
        return Found("not told apart", said, (), least_tail=least)
    grid = grids[0]
    if len(kinds) == 1:
        kind = "pages" if kinds[0] == PAGES else "checkpoints"
        said = f"{_PARTS[kinds[0]]} {'of' if kinds[0] == PAGES else 'every'} {grid} tokens"
    else:
        kind = "multiples"
        said = f"multiples of {grid} tokens; whether pages or recurrent checkpoints is not told apart"
    most, fewest = int(caches.tail.max()), int(caches.tail.min())
    if fewest > 1:
        said += f"; a hit leaves at least {fewest if fewest == most else f'{fewest} to {most}'} tokens"
    return Found(kind, said, (), grid, _STRATEGY[kinds[0]], least)


def _without_grid(
    caches: Caches, kinds: Sequence[int], sends: Sequence[Send], least: int, *, cuts: bool
) -> Found:
    if kinds == [PAGES]:
        count = sum(one.what == "again" for one in sends)
        said = f"every token (full reuse): tail 1 for every length that was sent ({count})"
        return Found("every token", said, (), 1, _STRATEGY[PAGES], least)
    tail = int(caches.tail[0])
    said = f"the same prompt again leaves {tail} tokens" if tail else "the same prompt again is not served"
    if cuts:
        said += ", a longer one resumes where one before it ended"
    return Found("prompt ends", said, (), 1, PROMPT_END, least)
