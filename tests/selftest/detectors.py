"""The detectors of the judge: how each is taken out, and a row of the mutation table that stands on it."""

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fidelity import compare, comparison, evidence, scoring, shift_judge
from fidelity.judging import draft, reference, reference_draft, rows

Patch = pytest.MonkeyPatch


class Detector(NamedTuple):
    """`take_out` removes it from the judge; `row` is a row that then is not as it must be; `cell` and
    `reason` are what the judge says of that row by it, a failing cell or, of a vacuous server, the
    verdict's."""

    take_out: Callable[[Patch], None]
    row: str
    cell: str
    reason: str


def without_rule(*begins: str) -> Callable[[Patch], None]:
    """The absolute rules that begin so never come."""

    def apply(patch: Patch) -> None:
        own = compare.broken_rules

        def fewer(*given: Any, **named: Any) -> tuple[str, ...]:
            return tuple(rule for rule in own(*given, **named) if not rule.startswith(begins))

        for name, module in list(sys.modules.items()):
            if name.startswith("fidelity.") and getattr(module, "broken_rules", None) is own:
                patch.setattr(module, "broken_rules", fewer)

    return apply


def no_flips(patch: Patch) -> None:
    patch.setattr(compare.Agreement, "corrupt", property(lambda self: self.kind == "broken"))


def no_shift(patch: Patch) -> None:
    patch.setattr(shift_judge, "_with_shifts", lambda verdict, *_: verdict)


def no_neighbours(patch: Patch) -> None:
    patch.setattr(shift_judge, "neighbour_rule", lambda verdict, *_: verdict)


def no_regret(patch: Patch) -> None:
    patch.setattr(scoring, "SURE", math.inf)
    patch.setattr(scoring, "HARD", math.inf)


def no_cross_talk(patch: Patch) -> None:
    patch.setattr(rows, "_whose", lambda *_: None)


def no_acceptance(patch: Patch) -> None:
    patch.setattr(draft, "BROKEN", 0.0)
    patch.setattr(draft, "KEPT", 0.0)


def any_count(patch: Patch) -> None:
    """A send counts as a hit whatever the server says."""
    for module in (evidence, comparison):
        patch.setattr(module, "missed", lambda *_, **__: None)
        if hasattr(module, "not_cold"):
            patch.setattr(module, "not_cold", lambda *_: None)


def no_reference(patch: Patch) -> None:
    patch.setattr(reference, "judge", lambda *_: [])


def no_draft_of_a_reference(patch: Patch) -> None:
    patch.setattr(reference_draft, "BROKEN", 0.0)
    patch.setattr(reference_draft, "KEPT", 0.0)


DETECTORS: dict[str, Detector] = {
    "NaN": Detector(
        without_rule("NaN"), "nan-500", "resend L=193 tail=1", "6 corrupt prompts of 6: NaN in 6 sends"
    ),
    "logprob that is no number": Detector(
        without_rule("the emitted token's logprob"),
        "nan-clamped",
        "resend L=193 tail=1",
        "6 corrupt prompts of 6: the emitted token's logprob is not a number in 6 sends",
    ),
    "flat row": Detector(
        without_rule("flat row"),
        "split-cold, sanitised NaN, one length",
        "resend L=193 cold",
        "6 corrupt prompts of 6: flat row in 12 sends",
    ),
    "run of one id": Detector(
        without_rule("run of one id"),
        "split-k-nan, no logprobs",
        "decode T=0",
        "4 of 4 answers corrupt: run of one id (24)",
    ),
    "probabilities above 1": Detector(
        without_rule("probabilities above 1"),
        "shard-logprobs",
        "resend L=193 cold",
        "6 corrupt prompts of 6: probabilities above 1 in 12 sends",
    ),
    "the top token": Detector(
        without_rule("not the top token", "probabilities above 1"),
        "shifted-logprobs in re-sends",
        "screening",
        "6 cold answers are broken: not the top token at temperature 0 (2.10 nat below, output token 0)",
    ),
    "hard flips and off-list tokens": Detector(
        no_flips, "no-state, code word", "resend L=193 tail=1", "6 corrupt prompts of 6: hard flip"
    ),
    "shift test": Detector(no_shift, "shared-page", "resend L=195 tail=3", "mean JSD above L=225 tail=33"),
    "neighbouring lengths": Detector(
        no_neighbours,
        "split-cold, split-k-extend",
        "resend L=193 tail=1",
        "6 of 6 known answers are wrong even cold at 193 tokens and right at 1 other length",
    ),
    "regret under a clean prefill": Detector(
        no_regret, "kv-scale-decode", "decode T=0", "4 of 4 answers corrupt: regret"
    ),
    "cross-talk": Detector(no_cross_talk, "swapped-row", "batch M=2", "8 of 8 rows corrupt: cross-talk"),
    "acceptance": Detector(
        no_acceptance, "split-k in drafts", "draft acceptance", "the draft is worse alone"
    ),
    "the server's own count": Detector(
        any_count, "never-hits", "", "L=193 tail=1 not exercised: no hit: cached_tokens 0 instead of 192"
    ),
    "cold answers against a reference": Detector(
        no_reference,
        "all-wrong",
        "reference L=193 cold against the reference",
        "the cold answers are not the reference's: mean JSD",
    ),
    "drafts against a reference": Detector(
        no_draft_of_a_reference,
        "draft",
        "reference acceptance against the reference",
        "the draft is worse than the reference's",
    ),
}
