"""One verdict for each replica behind a router: each becomes an arm of its own when a run is judged."""

from collections.abc import Sequence
from dataclasses import replace

from fidelity.compare import NAN_FACES
from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.plan import Arm
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS, ArmVerdict

NOT_TOLD = "replica not told"
"""The arm of the answers that name no replica and belong to none, as error pages of a router."""

STAYS = ("hit", "seed", "show-hit")
"""Roles of sends that may miss the path."""

Key = tuple[str, str, int]


def by_replica(
    manifest: Manifest, observations: Sequence[Observation]
) -> tuple[Manifest, Sequence[Observation]]:
    """The run as if each replica had been an arm. What was sent of one prompt belongs to the replica that
    answered it cold (or first): a hit that another served stays with it, as one that missed the path, and all
    else of another is left out, as a second cold send there is no noise of the first and a score there none
    of what it generated. Answers that name no replica, of prompts that no other answer names one for, are the
    arm NOT_TOLD, as nobody would judge them. Replicas that the plan has and nobody saw are an arm in which
    nothing was measured, so that no pass can speak of them."""
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
    moved, untold = [], False
    for obs in observations if seen else ():
        home = homes.get(_key(obs), obs.answer.replica)
        if obs.arm != base.name or (home is None and obs.role in ("warmup", "grid")):
            moved.append(obs)
        elif home is None:
            moved.append(replace(obs, arm=NOT_TOLD))
            untold = True
        elif obs.role in STAYS or obs.answer.replica in (home, None):
            moved.append(replace(obs, arm=home))
    own = [*seen, NOT_TOLD] if untold else seen
    if untold:
        arms.append(base.model_copy(update={"name": NOT_TOLD}))
    records = {**manifest.arms}
    if base.name in records:
        records |= {name: replace(records[base.name], prompts=[], replaced=[]) for name in own}
    plan = plan.model_copy(update={"arms": tuple(arms)})
    return replace(manifest, plan=plan, arms=records), moved or observations


def lay_over(arm: ArmVerdict, observations: Sequence[Observation]) -> ArmVerdict:
    """The verdict of the arm NOT_TOLD by its answers alone, whatever its cells hold; any other as it is. It
    fails with a NaN in any of them, and does not pass with one that failed."""
    if arm.name != NOT_TOLD or arm.state == FAIL:
        return arm
    own = [obs.answer for obs in observations if obs.arm == NOT_TOLD]
    broken = sum(any(answer.faces.get(face) for face in NAN_FACES) for answer in own)
    if broken:
        return replace(arm, state=FAIL, reason=f"{broken} answers that name no replica are broken: NaN")
    failed = sum(answer.failed for answer in own)
    if failed and arm.state == PASS:
        return replace(arm, state=INCONCLUSIVE, reason=f"{failed} requests failed, and no replica is named")
    return arm


def _key(obs: Observation) -> Key | None:
    """What it belongs to; None for sends that belong to no other."""
    alone = not obs.group or obs.role in ("screen", "warmup", "grid")
    return None if alone else (obs.probe, obs.group, obs.attempt)
