"""One verdict for each replica behind a router: each becomes an arm of its own when a run is judged."""

from collections.abc import Sequence
from dataclasses import replace

from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.plan import Arm

STAYS = ("hit", "seed", "show-hit")
"""Roles of sends that may miss the path."""

Key = tuple[str, str, int]


def by_replica(
    manifest: Manifest, observations: Sequence[Observation]
) -> tuple[Manifest, Sequence[Observation]]:
    """The run as if each replica had been an arm. What was sent of one prompt belongs to the replica that
    answered it cold (or first): a hit that another served stays with it, as one that missed the path, and all
    else of another is left out, as a second cold send there is no noise of the first and a score there none
    of what it generated. Replicas that the plan has and nobody saw are an arm in which nothing was measured,
    so that no pass can speak of them."""
    plan = manifest.plan
    if plan.target.replicas == 1:
        return manifest, observations
    base = plan.arms[0]
    homes: dict[Key | None, str] = {}
    for obs in sorted(observations, key=lambda one: one.role != "cold"):
        if _key(obs) is not None and obs.answer.replica is not None:
            homes.setdefault(_key(obs), obs.answer.replica)
    seen = sorted({obs.answer.replica for obs in observations if obs.answer.replica is not None})
    arms = [base.model_copy(update={"name": name}) for name in seen] or [base]
    missing = plan.target.replicas - len(seen)
    if missing > 0:
        told = "seen" if seen else "told apart by the answers"
        arms.append(Arm(name=f"{missing} replicas not {told}"))
    moved = []
    for obs in observations if seen else ():
        home = homes.get(_key(obs), obs.answer.replica)
        if obs.arm != base.name or home is None:
            moved.append(obs)
        elif obs.role in STAYS or obs.answer.replica in (home, None):
            moved.append(replace(obs, arm=home))
    records = {**manifest.arms}
    if base.name in records:
        records |= {name: replace(records[base.name], prompts=[], replaced=[]) for name in seen}
    plan = plan.model_copy(update={"arms": tuple(arms)})
    return replace(manifest, plan=plan, arms=records), moved or observations


def _key(obs: Observation) -> Key | None:
    """What it belongs to; None for sends that belong to no other."""
    alone = not obs.group or obs.role in ("screen", "warmup", "grid")
    return None if alone else (obs.probe, obs.group, obs.attempt)
