"""From the answers to a verdict: per call, per guard, for the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from fidelity import errors
from fidelity.kernel.work import FILLS, Answer, Check, Done, Failed, GuardProof, Machine, Timing, Work
from fidelity.verdicts import COULD_NOT_RUN, FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS

EXIT = {
    PASS: errors.PASS,
    FAIL: errors.FAIL,
    INCONCLUSIVE: errors.INCONCLUSIVE,
    COULD_NOT_RUN: errors.COULD_NOT_RUN,
}
ORDER = (FAIL, COULD_NOT_RUN, INCONCLUSIVE, NOT_EXERCISED, PASS)


@dataclass(frozen=True)
class CallVerdict:
    """One M at one TP under one guard, over its fills. `errors` maps a fill to the largest relative error."""

    tp: int
    m: int
    affected: bool
    splits: int
    state: str
    reason: str
    errors: dict[str, float]


@dataclass(frozen=True)
class GuardVerdict:
    """All calls under one guard. `proof` is what the guard saw, None for `none`."""

    guard: str
    state: str
    reason: str
    calls: tuple[CallVerdict, ...]
    proof: GuardProof | None


@dataclass(frozen=True)
class KernelVerdict:
    """The run. `label` says whose operator it was, and where."""

    state: str
    exit_code: int
    reason: str
    label: str
    model: str
    machine: Machine | None
    guards: tuple[GuardVerdict, ...]
    timings: tuple[Timing, ...]
    warnings: tuple[str, ...]
    seconds: float | None


def judge(work: Work, answers: Sequence[Answer], ended: str | None = None) -> KernelVerdict:
    """The verdict on what was answered; `ended` is how the process ended, None for well."""
    machine = next((one for one in answers if isinstance(one, Machine)), None)
    failed = next((one for one in answers if isinstance(one, Failed)), None)
    done = next((one for one in answers if isinstance(one, Done)), None)
    checks = [one for one in answers if isinstance(one, Check)]
    proofs = {one.guard: one for one in answers if isinstance(one, GuardProof)}
    guards = tuple(_guard(work, name, checks, proofs.get(name), done is not None) for name in work.guards)
    state = min((one.state for one in guards), key=ORDER.index)
    reason = "; ".join(f"guard {one.guard}: {one.reason}" for one in guards if one.state == state)
    if done is None and state != FAIL:
        state = COULD_NOT_RUN
        reason = f"the operator's process ended early: {ended or 'unknown'}"
        if failed:
            reason = f"{failed.message}; {failed.hint}" if failed.hint else failed.message
    return KernelVerdict(
        state=state,
        exit_code=EXIT[state],
        reason=reason,
        label=label(machine, work),
        model=work.model,
        machine=machine,
        guards=guards,
        timings=tuple(one for one in answers if isinstance(one, Timing)),
        warnings=tuple(_warnings(work, machine, guards, done is not None)),
        seconds=done.seconds if done else None,
    )


def label(machine: Machine | None, work: Work) -> str:
    if machine is None:
        return f"{work.backend}: not run"
    where = f"{machine.operator} on {machine.device}"
    return f"{where}; SIMULATED, not an AMD result" if machine.stand_in else where


def _guard(
    work: Work, guard: str, checks: Sequence[Check], proof: GuardProof | None, done: bool
) -> GuardVerdict:
    found = {(one.tp, one.m): [] for one in work.cases}  # type: dict[tuple[int, int], list[Check]]
    for check in checks:
        if check.guard == guard:
            found[check.tp, check.m].append(check)
    calls = []
    for case in work.cases:
        mine = found[case.tp, case.m]
        state, reason = _call(mine, work.tolerance)
        shown = {check.fill: check.error for check in mine}
        calls.append(CallVerdict(case.tp, case.m, case.affected, case.splits, state, reason, shown))
    wrong = [call for call in calls if call.state == FAIL]
    missing = [call for call in calls if call.state == NOT_EXERCISED]
    unproved = _unproved(guard, proof) if done else None
    if wrong:
        state, reason = FAIL, f"wrong at {_places(wrong)}, of {len(calls)} calls"
    elif unproved:
        state, reason = COULD_NOT_RUN, unproved
    elif missing:
        state, reason = INCONCLUSIVE, f"not exercised at {_places(missing)}"
    else:
        worst = max(error for call in calls for error in call.errors.values())
        state, reason = PASS, f"all {len(calls)} calls right (largest relative error {worst:.3f})"
    return GuardVerdict(guard, state, reason, tuple(calls), proof)


def _call(checks: Sequence[Check], tolerance: float) -> tuple[str, str]:
    wrong = [check for check in checks if not check.error <= tolerance]
    if wrong:
        said = ", ".join(
            f"{check.fill} fill: {'no number' if check.error != check.error else f'{check.error:.3g}'}"
            for check in wrong
        )
        return FAIL, f"relative error above {tolerance:g}; {said}"
    missing = [fill for fill in FILLS if fill not in [check.fill for check in checks]]
    if missing:
        return NOT_EXERCISED, f"not run ({', '.join(missing)})"
    clean = [check.fill for check in checks if not check.filled]
    if clean:
        return NOT_EXERCISED, f"the call took no memory that was filled ({', '.join(clean)})"
    return PASS, f"relative error at most {max(check.error for check in checks):.3f}"


def _unproved(guard: str, proof: GuardProof | None) -> str | None:
    if guard == "none":
        return None
    if proof is None or proof.wrapped is None or not proof.calls:
        return "the guard was never called: nothing shows that it was active"
    return f"the guard met errors: {proof.errors[0].splitlines()[0]}" if proof.errors else None


def _warnings(work: Work, machine: Machine | None, guards: Sequence[GuardVerdict], done: bool) -> list[str]:
    said = []
    units = machine.compute_units if machine else None
    if units is not None and units != work.units:
        said.append(
            f"predicted for {work.units} compute units, and this GPU has {units}: give --cu {units} for "
            "predictions that fit"
        )
    for guard in guards:
        extra = [call for call in guard.calls if call.state == FAIL and not call.affected]
        if extra:
            said.append(
                f"guard {guard.guard}: wrong where one K tile per split is not predicted: {_places(extra)}"
            )
        if guard.guard != "none" or not done:
            continue
        absent = [call for call in guard.calls if call.state == PASS and call.affected]
        if absent:
            said.append(
                f"predicted and not found at {_places(absent)}: this operator guards itself, zeroes the "
                "buffer, or has tuned rows for these shapes"
            )
    return said


def _places(calls: Sequence[CallVerdict]) -> str:
    """`TP1 M 1; TP2 M 1, 2`."""
    by_tp: dict[int, list[int]] = {}
    for call in calls:
        by_tp.setdefault(call.tp, []).append(call.m)
    return "; ".join(f"TP{tp} M {', '.join(map(str, sizes))}" for tp, sizes in by_tp.items())
