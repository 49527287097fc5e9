"""Observations and a manifest -> the verdict of each arm and of the run. Never talks to a server."""

from collections.abc import Sequence

from fidelity import errors
from fidelity.arm_judge import judge_arms
from fidelity.manifest import Manifest
from fidelity.memory import no_collection
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.verdicts import (
    COULD_NOT_RUN,
    FAIL,
    INCONCLUSIVE,
    NOT_EXERCISED,
    PASS,
    ArmVerdict,
    RunVerdict,
)

_EXIT = {
    PASS: errors.PASS,
    FAIL: errors.FAIL,
    INCONCLUSIVE: errors.INCONCLUSIVE,
    COULD_NOT_RUN: errors.COULD_NOT_RUN,
}
_WORST_FIRST = (FAIL, COULD_NOT_RUN, INCONCLUSIVE, PASS)


def judge(manifest: Manifest, observations: Sequence[Observation]) -> RunVerdict:
    """The run is the worst of its deciding arms; a run that did not end by itself is never a pass."""
    plan = manifest.plan
    with no_collection():
        arms = judge_arms(plan, manifest.arms, observations, plan.thresholds)
    deciding = [arm for arm in arms if not arm.baseline]
    worst = min(deciding, key=lambda arm: _WORST_FIRST.index(arm.state))
    state, reason = worst.state, f"arm {worst.name}: {worst.reason}"
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
        target=plan.target.url or plan.target.model,
        status=manifest.status,
        partial=manifest.status != "complete",
        error=manifest.error,
        bound=_bound(deciding, plan) if state == PASS else "",
        arms=tuple(arms),
        not_exercised=tuple(_not_exercised(arms)),
        warnings=tuple(_run_warnings(arms)),
        thresholds=plan.thresholds.model_dump(),
        run_id=manifest.run_id,
        seed=plan.seed,
        version=manifest.version,
        started=manifest.started,
    )


def label(manifest: Manifest) -> str:
    """What the figures speak of, so that no report can be taken for another machine's."""
    facts = next((record.facts for record in manifest.arms.values() if record.facts), None)
    plan = manifest.plan
    if plan.target.kind == "embedded" or (facts and facts["simulated"]):
        return (
            "SIMULATED: the embedded engine, a small model in NumPy; not a result of any real server or GPU"
        )
    if facts is None:
        return f"no server was reached at {plan.target.url or plan.target.model}"
    return f"{facts['engine']} {facts['version']} serving {facts['model']}, as the server reports itself"


def _bound(deciding: Sequence[ArmVerdict], plan: RunPlan) -> str:
    cells = [cell for arm in deciding for cell in arm.cells]
    corrupt = max(cell.corrupt for cell in cells)
    prompts = min(cell.exercised for cell in cells)
    limits = plan.thresholds
    rate = f"at most {limits.max_rate * 100:g} % at {limits.confidence * 100:g} %"
    return f"{corrupt} corrupt prompts of {prompts}: {rate}"


def _exit_code(state: str, manifest: Manifest) -> int:
    if manifest.status == "interrupted":
        return errors.INTERRUPTED
    if state == COULD_NOT_RUN and manifest.exit_code is not None:
        return manifest.exit_code
    return _EXIT[state]


def _not_exercised(arms: Sequence[ArmVerdict]) -> list[str]:
    found = [
        f"arm {arm.name}, {cell.name}: {cell.reason}"
        for arm in arms
        for cell in arm.cells
        if cell.state == NOT_EXERCISED
    ]
    found += [f"arm {arm.name}: nothing was measured" for arm in arms if not arm.cells]
    return [*found, "decode, batches and speculative decoding: this version probes cached re-sends only"]


def _run_warnings(arms: Sequence[ArmVerdict]) -> list[str]:
    found = [f"arm {arm.name}: {message}" for arm in arms for message in arm.warnings]
    found += [
        f"baseline arm {arm.name} passes: the fault it stands for does not show on this server"
        for arm in arms
        if arm.baseline and arm.state == PASS
    ]
    return found
