"""What the sends tell that no cell judges: the warm-up and the screening."""

from collections.abc import Sequence
from dataclasses import dataclass

from fidelity.compare import broken_rules
from fidelity.observations import Observation


@dataclass(frozen=True)
class Unjudged:
    """`broken_screens`: cold answers of the screening that break an absolute rule, `rule` the first of them;
    `cold_start`: more of the warm-up failed than not."""

    warnings: tuple[str, ...]
    broken_screens: int
    rule: str
    cold_start: bool


def unjudged_sends(observations: Sequence[Observation]) -> Unjudged:
    """Look at an arm's warm-up and screening sends."""
    warmup = [obs for obs in observations if obs.role == "warmup"]
    failed = sum(obs.answer.failed for obs in warmup)
    broken = [rules for obs in warmup if (rules := broken_rules(obs.answer))]
    screens = [rules for obs in observations if obs.role == "screen" and (rules := broken_rules(obs.answer))]
    warnings = []
    if failed:
        warnings.append(f"{failed} of {len(warmup)} warm-up sends failed")
    if broken:
        warnings.append(
            f"{len(broken)} of {len(warmup)} warm-up answers are broken ({broken[0][0]}): the warm-up is "
            "not judged, and the decode and batch probes have to look at this server"
        )
    return Unjudged(
        warnings=tuple(warnings),
        broken_screens=len(screens),
        rule=screens[0][0] if screens else "",
        cold_start=bool(warmup) and failed * 2 > len(warmup),
    )
