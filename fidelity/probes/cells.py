"""The conditions of the resend probe: which lengths leave which tails, and how a hit is brought about."""

from dataclasses import dataclass

from fidelity.engines.facts import ServerFacts
from fidelity.errors import PlanError
from fidelity.plan_probes import Resend
from fidelity.probes.prediction import CachePrediction

THREAD_POSITION = 192
FAR_CONTROL = 33
UNKNOWN_SUSPECTS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Cell:
    """One condition: prompts of `length` tokens whose hit recomputes `tail` of them. `why` tells how it was
    chosen."""

    name: str
    kind: str
    length: int
    tail: int
    why: str

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
        why = "the fault region is not known here: tails 1 to 4 are suspects"
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
    if resend.lengths is not None:
        pairs = [(length, (length - 1) % grid + 1) for length in resend.lengths]
        largest_suspect = max((tail for tail, kind in kinds.items() if kind == "suspect"), default=0)
        kinds = {tail: "suspect" if tail <= largest_suspect else "control" for _, tail in pairs}
    else:
        positions = resend.positions or (-(-THREAD_POSITION // grid) * grid,)
        wrong = [position for position in positions if position % grid or position <= 0]
        if wrong:
            raise PlanError(
                f"position {wrong[0]} is no checkpoint of this server (grid {grid} tokens)",
                f"give multiples of {grid}",
            )
        pairs = [(position + tail, tail) for position in positions for tail in kinds]
    cells = [
        Cell(name=f"L={length} tail={tail}", kind=kinds[tail], length=length, tail=tail, why=why)
        for length, tail in sorted(set(pairs))
    ]
    too_short = [cell for cell in cells if cell.position < grid]
    if too_short:
        raise PlanError(
            f"a prompt of {too_short[0].length} tokens is never served from the cache of this server",
            f"lengths from {grid + 1} tokens up leave a checkpoint",
        )
    return cells


_SEED_BEYOND = {"attention only": 0, "extra_buffer": 1}
"""By strategy, the tokens past a cell's position that a seed must have for a longer prompt to resume there: a
hybrid's prefill that passes a grid point leaves its one checkpoint at it."""


@dataclass(frozen=True)
class HitPlan:
    """How a hit of one cell comes about. `seed_length`: tokens sent first (the whole prompt, or a prefix of
    it); `primes`: re-sends needed before the cache can serve it; `own_namespace`: each hit needs a fresh
    seed; `reachable`: the prediction says that the tail can be reached at all."""

    seed_length: int
    primes: int
    own_namespace: bool
    reachable: bool


def plan_hit(cell: Cell, facts: ServerFacts, min_tail: int) -> HitPlan:
    """The shortest way to a hit of this cell, by prediction."""

    def fresh() -> CachePrediction:
        return CachePrediction(facts.grid, facts.strategy, min_tail)

    cache = fresh()
    cache.send(cell.length)
    for primes in range(2):
        if cache.send(cell.length) == cell.position:
            return HitPlan(cell.length, primes, own_namespace=False, reachable=True)
    seed = _SEED_BEYOND.get(facts.strategy)
    if seed is not None:
        cache = fresh()
        cache.send(cell.position + seed)
        if cell.position + seed < cell.length and cache.send(cell.length) == cell.position:
            return HitPlan(cell.position + seed, 0, own_namespace=True, reachable=True)
    return HitPlan(cell.length, 0, own_namespace=False, reachable=False)
