"""Release numbers of serving engines, as far as they decide how an answer is read."""

import re

Release = tuple[int, int, int]


def release(version: str) -> Release | None:
    """`0.5.21.post1` -> (0, 5, 21); None for anything that does not begin so, or is a development build."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?!\d*\.?dev)", version)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def at_least(version: str, wanted: Release) -> bool:
    """False also for a version that cannot be read."""
    known = release(version)
    return known is not None and known >= wanted
