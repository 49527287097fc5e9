"""Observations and a manifest -> the verdict of each arm and of the run. Never talks to a server."""

from collections.abc import Sequence
from dataclasses import replace

from fidelity import errors
from fidelity.arm_judge import judge_arms
from fidelity.judging.registry import COMPARERS
from fidelity.manifest import ArmRecord, Manifest
from fidelity.memory import no_collection
from fidelity.observations import Observation
from fidelity.plan import RunPlan, Thresholds
from fidelity.routed import by_replica, lay_over
from fidelity.verdicts import (
    COULD_NOT_RUN,
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    ArmVerdict,
    Comparison,
    RunVerdict,
)

_EXIT = {
    PASS: errors.PASS,
    FAIL: errors.FAIL,
    INCONCLUSIVE: errors.INCONCLUSIVE,
    COULD_NOT_RUN: errors.COULD_NOT_RUN,
}
_WORST_FIRST = (FAIL, COULD_NOT_RUN, INCONCLUSIVE, PASS)


def judge(
    manifest: Manifest, observations: Sequence[Observation], thresholds: Thresholds | None = None
) -> RunVerdict:
    """The run is the worst of its deciding arms; a run that did not end by itself is never a pass.

    `thresholds` other than the plan's own, which were fixed before the first request, are told in a warning.
    """
    manifest, observations = by_replica(manifest, observations)
    plan = manifest.plan
    limits = thresholds or plan.thresholds
    with no_collection():
        arms = [
            _as_ended(lay_over(arm, observations), manifest.arms.get(arm.name))
            for arm in judge_arms(plan, manifest.arms, observations, limits.each_look)
        ]
        comparisons = _compare_arms(manifest, observations, limits.each_look)
    deciding = [arm for arm in arms if not arm.baseline]
    worst = min(deciding, key=lambda arm: _WORST_FIRST.index(arm.state))
    state, reason = worst.state, f"arm {worst.name}: {worst.reason}"
    compared = [one for one in comparisons if one.state in (FAIL, INCONCLUSIVE)]
    for one in compared:
        if _WORST_FIRST.index(one.state) < _WORST_FIRST.index(state):
            state, reason = one.state, f"{one.probe}, {one.name}: {one.reason}"
    if state != FAIL:
        if manifest.status == "failed":
            state, reason = COULD_NOT_RUN, manifest.error or "the run could not go on"
        elif manifest.status != "complete" and state == PASS:
            state, reason = INCONCLUSIVE, f"the run did not end by itself ({manifest.status})"
    return RunVerdict(
        state=state,
        exit_code=_exit_code(state, manifest),
        reason=reason,
        label=label(manifest),
        target=", ".join(dict.fromkeys(plan.urls)) or plan.target.model,
        status=manifest.status,
        partial=manifest.status != "complete",
        error=manifest.error,
        bound=_bound(deciding, limits.each_look) if state == PASS else "",
        arms=tuple(arms),
        not_exercised=tuple(_not_exercised(plan, arms)),
        comparisons=tuple(comparisons),
        warnings=(*_rejudged(plan.thresholds, limits), *_run_warnings(arms)),
        thresholds=limits.model_dump(),
        run_id=manifest.run_id,
        seed=plan.seed,
        version=manifest.version,
        started=manifest.started,
    )


def _as_ended(arm: ArmVerdict, record: ArmRecord | None) -> ArmVerdict:
    """What a replica that was left before its end proves: a failure, else nothing."""
    if record is None or arm.state == FAIL:
        return arm
    if record.error:
        return replace(arm, state=COULD_NOT_RUN, reason=record.error)
    if record.unfinished and arm.state == PASS:
        return replace(arm, state=INCONCLUSIVE, reason=record.unfinished)
    return arm


def label(manifest: Manifest) -> str:
    """What the figures speak of, so that no report can be taken for another machine's."""
    facts = next((record.facts for record in manifest.arms.values() if record.facts), None)
    plan = manifest.plan
    if plan.target.kind == "embedded" or (facts and facts["simulated"]):
        return (
            "SIMULATED: the embedded engine, a small model in NumPy; not a result of any real server or GPU"
        )
    if facts is None:
        return f"no server was reached at {', '.join(plan.urls) or plan.target.model}"
    return f"{facts['engine']} {facts['version']} serving {facts['model']}, as the server reports itself"


def _compare_arms(
    manifest: Manifest, observations: Sequence[Observation], limits: Thresholds
) -> list[Comparison]:
    found: list[Comparison] = []
    for name in manifest.plan.selected:
        if name not in COMPARERS:
            continue
        by_arm: dict[str, list[Observation]] = {arm.name: [] for arm in manifest.plan.arms}
        for obs in observations:
            if obs.probe == name and obs.arm in by_arm:
                by_arm[obs.arm].append(obs)
        found += COMPARERS[name](manifest.plan, manifest.arms, by_arm, limits)
    return found


def _bound(deciding: Sequence[ArmVerdict], limits: Thresholds) -> str:
    """What the pass excludes: of re-sends, and of what the probes that send few prompts looked at."""
    cells = [cell for arm in deciding for cell in arm.cells if cell.state == PASS]
    resend = [cell for cell in cells if cell.probe == "resend"]
    few = dict.fromkeys(cell.probe for cell in cells if cell.probe != "resend" and 0 < cell.rate_upper < 1)
    at = f"at {limits.confidence * 100:g} %"
    said = []
    if resend:
        corrupt, prompts = max(cell.corrupt for cell in resend), min(cell.exercised for cell in resend)
        said.append(f"{corrupt} corrupt prompts of {prompts}: at most {limits.max_rate * 100:g} % {at}")
    if few:
        said.append(f"{', '.join(few)}: none corrupt, at most {limits.coarse_rate * 100:g} % {at}")
    return "; ".join(said)


def _exit_code(state: str, manifest: Manifest) -> int:
    if manifest.status == "interrupted":
        return errors.INTERRUPTED
    if state == COULD_NOT_RUN and manifest.exit_code is not None:
        return manifest.exit_code
    return _EXIT[state]


def _not_exercised(plan: RunPlan, arms: Sequence[ArmVerdict]) -> list[str]:
    found = [
        f"arm {arm.name}, {'' if cell.probe == 'resend' else cell.probe + ' '}{cell.name}: {cell.reason}"
        for arm in arms
        for cell in arm.cells
        if cell.state == NOT_EXERCISED
    ]
    found += [f"arm {arm.name}: nothing was measured" for arm in arms if not arm.cells]
    found += [f"arm {arm.name}, {name}: {why}" for arm in arms for name, why in arm.skipped.items()]
    left_out = ", ".join(f"{path} (--probe {name})" for name, path in plan.unprobed.items())
    return [*found, *([f"not asked for: {left_out}"] if left_out else [])]


def _rejudged(own: Thresholds, used: Thresholds) -> list[str]:
    before = own.model_dump()
    changed = [
        f"{name} {value:g} instead of {before[name]:g}"
        for name, value in used.model_dump().items()
        if value != before[name]
    ]
    if not changed:
        return []
    return ["re-judged with thresholds other than the run's own, chosen after it: " + ", ".join(changed)]


def _run_warnings(arms: Sequence[ArmVerdict]) -> list[str]:
    found = [f"arm {arm.name}: {message}" for arm in arms for message in arm.warnings]
    found += [
        f"baseline arm {arm.name} passes: the fault it stands for does not show on this server"
        for arm in arms
        if arm.baseline and arm.state == PASS
    ]
    found += [
        f"arm {arm.name}: only {arm.cold_right} of {arm.cold_known} known answers are right even cold: the "
        "verdict speaks of the server's agreement with itself only"
        for arm in arms
        if arm.cold_right * 2 < arm.cold_known
    ]
    return found
