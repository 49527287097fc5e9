"""Retry-After: how long a server that refuses for now asks to be left alone."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

LONGEST = 120.0
"""Seconds waited at most, whatever is asked."""

_STATUSES = (429, 503)


def asked_wait(response: httpx.Response) -> float | None:
    """Seconds that a 429 or 503 asks to wait, LONGEST at most; None where it asks for no wait."""
    value = response.headers.get("retry-after", "").strip()
    if response.status_code not in _STATUSES or not value:
        return None
    if value.isdecimal():
        return min(float(value), LONGEST)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(max((until - datetime.now(UTC)).total_seconds(), 0.0), LONGEST)
