"""What the probes that send few prompts share: a rate over prompts, and the state that follows from it."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fidelity.observations import Observation
from fidelity.plan import Thresholds
from fidelity.stats.rates import clopper_pearson, prompts_needed
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_EXERCISED, PASS, Figure


def count_faces(sends: Iterable[Observation]) -> dict[str, int]:
    """How often each way of not being a number shows in these answers."""
    faces: Counter[str] = Counter()
    for send in sends:
        faces.update(send.answer.faces)
    return dict(faces)


def rate_limits(corrupt: int, exercised: int, limits: Thresholds) -> tuple[float, float, tuple[Figure, ...]]:
    """One-sided exact (Clopper-Pearson) limits of the corrupt share, and the figure that a pass must hold.
    Raises ValueError for more corrupt than exercised."""
    lower, upper = clopper_pearson(corrupt, exercised, limits.confidence)
    if not exercised:
        return lower, upper, ()
    source = f"thresholds.coarse_rate; exact one-sided limit at {limits.confidence * 100:g}%"
    figure = Figure(
        f"corrupt share, {corrupt} of {exercised}: upper limit",
        upper,
        "<=",
        limits.coarse_rate,
        source,
        upper <= limits.coarse_rate,
    )
    return lower, upper, (figure,)


def decide(
    what: str, corrupt: int, exercised: int, planned: int, why: Sequence[str], limits: Thresholds
) -> tuple[str, str]:
    """State and reason where one corrupt answer is proof. `what` names what is counted, in the plural; `why`
    are reasons, worst first: of the corrupt ones, or else of those that did not take the path."""
    if corrupt:
        return FAIL, f"{corrupt} of {exercised} {what} corrupt: {why[0] if why else 'no reason given'}"
    if not exercised:
        return NOT_EXERCISED, why[0] if why else "nothing was measured"
    upper = clopper_pearson(0, exercised, limits.confidence).upper
    bound = f"0 corrupt of {exercised} {what}: at most {upper * 100:.1f}% at {limits.confidence * 100:g}%"
    if exercised < planned:
        missed = f"{planned - exercised} of {planned} {what} did not take the path"
        return INCONCLUSIVE, f"{missed}: {why[0]}" if why else missed
    if upper > limits.coarse_rate:
        needed = prompts_needed(limits.coarse_rate, limits.confidence)
        return INCONCLUSIVE, f"{bound}; {needed} are needed for {limits.coarse_rate * 100:g}%"
    return PASS, bound
