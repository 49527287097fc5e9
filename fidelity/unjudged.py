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


def unjudged_sends(observations: Sequence[Observation], cached_tokens_flag: str = "") -> Unjudged:
    """Look at an arm's warm-up and screening sends; `cached_tokens_flag` makes its server tell what it took
    from the cache."""
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
    told = [obs.answer for obs in observations if obs.answer.error is None]
    if cached_tokens_flag and told and all(answer.cached_tokens is None for answer in told):
        warnings.append(
            "no answer tells its cached tokens, so no hit can be shown: start the server with "
            f"{cached_tokens_flag}"
        )
    return Unjudged(
        warnings=tuple(warnings),
        broken_screens=len(screens),
        rule=screens[0][0] if screens else "",
        cold_start=bool(warmup) and failed * 2 > len(warmup),
    )
