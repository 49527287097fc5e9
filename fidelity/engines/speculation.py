"""What a server tells of its speculative decoding, by the names of each release."""

from dataclasses import dataclass

from fidelity.engines.facts import ServerFacts
from fidelity.observations import Answer


@dataclass(frozen=True)
class Acceptance:
    """Of one answer: tokens per verification, and the share of drafted tokens that were accepted (None where
    the server does not say)."""

    length: float
    rate: float | None


def algorithm(facts: ServerFacts) -> str | None:
    """The speculative algorithm that the server runs; None without one."""
    name = facts.raw.get("speculative_algorithm")
    return name if isinstance(name, str) and name.lower() not in ("", "none") else None


def acceptance(answer: Answer) -> Acceptance | None:
    """Read off an answer's `spec_*` figures; None where there are none.

    `spec_accept_length`, `spec_accept_rate` and `spec_num_*` from sglang 0.5.13 on; 0.5.9 counts
    `spec_accept_token_num` of `spec_draft_token_num`.
    """
    told = answer.spec
    verified = told.get("spec_verify_ct")
    length = told.get("spec_accept_length")
    if length is None and verified:
        length = len(answer.output_ids) / verified
    if length is None:
        return None
    rate = told.get("spec_accept_rate")
    for right, drafted in (
        ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
        ("spec_accepted_drafts", "spec_proposed_drafts"),
        ("spec_accept_token_num", "spec_draft_token_num"),
    ):
        if rate is None and told.get(drafted):
            rate = told.get(right, 0.0) / told[drafted]
    return Acceptance(length, rate)
