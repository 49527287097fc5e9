"""The part of a plan that names a trusted reference: what it can be, and what it needs."""

from collections.abc import Sequence

from fidelity.errors import PlanError
from fidelity.servers.address import check_url

ARM = "reference"
"""The arm under which a run records what its reference answered."""


def is_url(name: str) -> bool:
    """Is it the address of a second server rather than something recorded?"""
    return "://" in name


def unusable(
    reference: str | None, urls: Sequence[str], arms: Sequence[str], probes: Sequence[str]
) -> str | None:
    """Why a plan cannot have this reference, None when it can. `urls` are the target's."""
    if "reference" not in probes:
        return None
    if reference is None:
        return "the probe 'reference' needs a reference: give --reference RUN, FILE or URL"
    if ARM in arms:
        return f"with a reference no arm can have the name '{ARM}'"
    if not {"resend", "decode", "draft"} & set(probes):
        return "a reference is held against what resend, decode and draft send: the plan has none of them"
    if is_url(reference):
        try:
            checked = check_url(reference)
        except PlanError as exc:
            return f"reference: {exc.message}"
        if checked in [url.rstrip("/") for url in urls]:
            return "the reference is the server under test itself"
    return None
