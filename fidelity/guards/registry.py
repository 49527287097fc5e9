"""The guards by name: what each does, and the shortest tail it leaves."""

from dataclasses import dataclass

from fidelity.errors import PlanError, did_you_mean


@dataclass(frozen=True)
class Guard:
    """`min_tail` is the fewest prompt tokens (>= 1) that a re-send recomputes under this guard."""

    name: str
    about: str
    min_tail: int = 1


GUARDS = {
    guard.name: guard
    for guard in (
        Guard("none", "the server as it is"),
        Guard("splitk", "lower the split of K until every split owns at least two K tiles"),
        Guard("unsplit", "never split K"),
        Guard("retreat", "never leave a one-token tail: resume one checkpoint earlier", min_tail=2),
    )
}


def guard(name: str) -> Guard:
    """The guard of that name. Raises PlanError with the nearest known one."""
    if name not in GUARDS:
        raise PlanError(f"there is no guard '{name}'", did_you_mean(name, GUARDS))
    return GUARDS[name]
