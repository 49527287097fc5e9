"""The conditions of the resend probe: which lengths leave which tails, and how a hit is brought about."""

from collections.abc import Mapping
from dataclasses import dataclass

from fidelity.engines.facts import PROMPT_END, ServerFacts
from fidelity.errors import PlanError
from fidelity.plan_probes import Resend
from fidelity.probes.moved import WORDS
from fidelity.probes.prediction import CachePrediction

THREAD_POSITION = 192
FAR_CONTROL = 33
UNKNOWN_SUSPECTS = (1, 2, 3, 4)
ANYWHERE_SUSPECTS = (1, 4)
"""Without a grid: what an identical re-send leaves where all of the KV cache is reused, and where a recurrent
state is kept a few tokens before the end of each prompt."""

LENGTH_CLASSES = (97, 320)
"""Where every token is re-used, every length re-sends alike, so further positions: one that no power of two
divides, and one past 256, to which kernels pad a KV cache."""


@dataclass(frozen=True)
class Cell:
    """One condition: prompts of `length` tokens whose hit recomputes `tail` of them. `why` tells how it was
    chosen. `moved`: the cache holds the prompt behind other words only, of which an engine that computes what
    it says can serve nothing; whatever it serves is held against the hits of this tail."""

    name: str
    kind: str
    length: int
    tail: int
    why: str
    moved: bool = False

    @property
    def position(self) -> int:
        """Where the hit resumes: tokens served from the cache."""
        return self.length - self.tail


def choose_tails(resend: Resend, facts: ServerFacts) -> tuple[dict[int, str], str]:
    """Tail -> suspect or control, and the reason in words."""
    region = facts.fault_region
    suspects: tuple[int, ...]
    controls: tuple[int, ...]
    if region is None:
        suspects, controls = UNKNOWN_SUSPECTS, (FAR_CONTROL,)
        if facts.strategy == PROMPT_END:
            suspects = ANYWHERE_SUSPECTS
        told = f"{suspects[0]} {'to' if len(suspects) > 2 else 'and'} {suspects[-1]}"
        why = f"the fault region is not known here: tails {told} are suspects"
    else:
        suspects, controls = default_tails(region)
        source = facts.region_source
        why = f"{source} has no affected batch size: tail 1 is tested all the same"
        if region:
            why = f"{source} is affected up to M = {region}"
    if resend.suspects is not None:
        suspects, why = resend.suspects, "suspect tails given in the plan"
    if resend.controls is not None:
        controls = resend.controls
    kinds = dict.fromkeys(controls, "control") | dict.fromkeys(suspects, "suspect")
    return kinds, why


def default_tails(region: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Suspect and control tails where batches up to `region` tokens (0: none) are affected."""
    suspects = tuple(range(1, max(region, 1) + 1))
    return suspects, tuple(dict.fromkeys((suspects[-1] + 1, FAR_CONTROL)))


def choose_cells(resend: Resend, facts: ServerFacts) -> list[Cell]:
    """The cells of a plan on this server, shortest length first. Raises PlanError for a length that has no
    tail."""
    kinds, why = choose_tails(resend, facts)
    grid = facts.grid
    if resend.lengths is not None and facts.strategy == PROMPT_END:
        # Each is one token past where it resumes; its control resumes there too.
        pairs = [(length - 1 + tail, tail) for length in resend.lengths for tail in _ends(kinds)]
    elif resend.lengths is not None:
        pairs = [(length, (length - 1) % grid + 1) for length in resend.lengths]
        largest_suspect = max((tail for tail, kind in kinds.items() if kind == "suspect"), default=0)
        kinds = {tail: "suspect" if tail <= largest_suspect else "control" for _, tail in pairs}
    else:
        if "ids" in facts.lacks:
            # Only what an identical re-send leaves: no prompt can be cut to fill the cache up to a point.
            kinds = {tail: kind for tail, kind in kinds.items() if tail <= grid}
        positions = resend.positions or (-(-THREAD_POSITION // grid) * grid,)
        wrong = [position for position in positions if position % grid or position <= 0]
        if wrong:
            raise PlanError(
                f"position {wrong[0]} is no checkpoint of this server (grid {grid} tokens)",
                f"give multiples of {grid}",
            )
        pairs = [(position + tail, tail) for position in positions for tail in kinds]
        if grid == 1 and not resend.positions:
            pairs += [(position + tail, tail) for position in LENGTH_CLASSES for tail in _ends(kinds)]
    cells = [
        Cell(name=f"L={length} tail={tail}", kind=kinds[tail], length=length, tail=tail, why=why)
        for length, tail in sorted(set(pairs))
    ]
    if facts.strategy == PROMPT_END:
        cells += [_behind_words(cell) for cell in cells if cell.kind == "control"][:1]
    too_short = [cell for cell in cells if cell.position < grid]
    if too_short:
        raise PlanError(
            f"a prompt of {too_short[0].length} tokens is never served from the cache of this server",
            f"lengths from {grid + 1} tokens up leave a checkpoint",
        )
    return cells


def _behind_words(control: Cell) -> Cell:
    """The condition in which an engine that moves what it has cached serves other states than the prompt's
    own."""
    why = f"the cache holds the prompt behind {WORDS} other tokens"
    return Cell(f"L={control.length} moved", "suspect", control.length, control.tail, why, moved=True)


def _ends(kinds: Mapping[int, str]) -> tuple[int, ...]:
    """The smallest suspect tail and the largest control, as far as there are both."""
    suspects = [tail for tail, kind in kinds.items() if kind == "suspect"]
    controls = [tail for tail, kind in kinds.items() if kind == "control"]
    return (*sorted(suspects)[:1], *sorted(controls)[-1:])


_SEED_BEYOND = {"attention only": 0, "extra_buffer": 1, "align": 1}
"""By strategy, the tokens past a cell's position that a seed must have for a longer prompt to resume there: a
hybrid's prefill that passes a grid point leaves its one checkpoint at it."""


@dataclass(frozen=True)
class HitPlan:
    """How a hit of one cell comes about. `seed_length`: tokens sent first (the whole prompt, or a prefix of
    it, in another namespace); `primes`: such sends that the cache needs first; `own_namespace`: each hit
    needs a fresh seed; `reachable`: the prediction says that the tail can be reached at all."""

    seed_length: int
    primes: int
    own_namespace: bool
    reachable: bool


def plan_hit(cell: Cell, facts: ServerFacts, min_tail: int) -> HitPlan:
    """The shortest way to a hit of this cell, by prediction."""
    if cell.moved:
        return HitPlan(cell.length + WORDS, 1, own_namespace=False, reachable=True)
    if facts.strategy == PROMPT_END:
        # What an identical re-send leaves is not known, but one token it leaves again.
        return HitPlan(cell.position, 1, own_namespace=cell.tail > 1, reachable=min_tail <= cell.tail)

    def fresh() -> CachePrediction:
        return CachePrediction(facts.grid, facts.strategy, min_tail)

    cache = fresh()
    cache.send(cell.length)
    for primes in range(2):
        if cache.send(cell.length) == cell.position:
            return HitPlan(cell.length, primes, own_namespace=False, reachable=True)
    seed = _SEED_BEYOND.get(facts.strategy)
    if seed is not None and "ids" not in facts.lacks:
        cache = fresh()
        cache.send(cell.position + seed)
        if cell.position + seed < cell.length and cache.send(cell.length) == cell.position:
            return HitPlan(cell.position + seed, 0, own_namespace=True, reachable=True)
    return HitPlan(cell.length, 0, own_namespace=False, reachable=False)
