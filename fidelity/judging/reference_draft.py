"""A draft's acceptance against a trusted server's: for drafts that are as bad in batches as alone."""

from collections.abc import Sequence

import numpy as np

from fidelity.engines.speculation import acceptance
from fidelity.judging.draft import BROKEN, HARDLY_EVER, KEPT
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Arm, RunPlan
from fidelity.probes.draft import drafted
from fidelity.probes.reference import ACCEPTANCE, PROBE
from fidelity.reference import DRAFTED
from fidelity.stats.bootstrap import Interval, paired_ratio
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    PASS,
    CellVerdict,
    Figure,
    Reading,
)


def judge(
    plan: RunPlan,
    arm: Arm,
    record: ArmRecord,
    observations: Sequence[Observation],
    told: Sequence[Observation],
) -> CellVerdict:
    """One cell: tokens a verification of each prompt alone, over the reference's for the same ids. It fails
    where the upper bootstrap limit of the median is below draft's BROKEN and passes where the lower one
    reaches KEPT, as draft's own comparison with batches does."""
    own = {ids: found for ids, obs in drafted(observations).items() if (found := acceptance(obs.answer))}
    trusted = {
        tuple(obs.input_ids): found
        for obs in told
        if obs.role == DRAFTED and not obs.answer.failed and (found := acceptance(obs.answer))
    }
    both = [ids for ids in own if ids in trusted]
    before, after = (np.array([one[ids].length for ids in both], dtype=float) for one in (trusted, own))
    kept = paired_ratio(before, after, seed=plan.seed)
    rates = [trusted[ids].rate for ids in both]
    good = not rates or any(rate is None or rate >= HARDLY_EVER for rate in rates)
    state, reason = _decide(len(own), len(trusted), kept, good)
    readings = [
        Reading(f"accept length{whose}, median", float(np.median(values)), "tokens")
        for whose, values in ((" of the reference", before), ("", after))
        if values.size
    ]
    return CellVerdict(
        arm=arm.name,
        probe=PROBE,
        name=ACCEPTANCE,
        kind="suspect",
        state=state,
        reason=reason,
        why=record.reference,
        prompts=plan.draft.prompts,
        exercised=len(both),
        sends=len(own),
        figures=_figures(kept),
        readings=tuple(readings),
    )


def _decide(own: int, trusted: int, kept: Interval, good: bool) -> tuple[str, str]:
    if not trusted:
        return NOT_APPLICABLE, "the reference tells no acceptance: it did not draft for this probe"
    if not own:
        return NOT_EXERCISED, "the server tells no acceptance (no spec_* figures in its answers)"
    if not kept.n:
        return NOT_EXERCISED, "the reference tells no acceptance of the same prompts"
    said = f"{kept.value:.2f} of the reference's tokens a verification [{kept.low:.2f}, {kept.high:.2f}]"
    if not good:
        return INCONCLUSIVE, f"the reference's own draft is hardly ever accepted: {said}"
    if kept.high < BROKEN:
        return FAIL, f"the draft is worse than the reference's: {said}; it costs speed and changes no logprob"
    return (PASS if kept.low >= KEPT else INCONCLUSIVE), said


def _figures(kept: Interval) -> tuple[Figure, ...]:
    if not kept.n:
        return ()
    source = "paired by prompt, bootstrap of the median at 95%"
    return tuple(
        Figure(
            f"acceptance, of the reference's: {which} limit", value, ">=", least, source, bool(value >= least)
        )
        for which, value, least in (("upper", kept.high, BROKEN), ("lower", kept.low, KEPT))
    )
