"""Secrets stay out of every record: by their key's name, after a flag, and wherever one's own appear."""

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "(hidden)"
LEAST = 6
"""Characters from which a header's value is taken for a secret; shorter ones occur in any answer."""

_KEY = re.compile(r"(?i)(^|[_-])(key|secret|password|passwd|credentials?|token)$")
_FLAG = re.compile(r"(?i)(--[\w-]*(?:key|secret|password|token)[ =]+)\S+")
_SCHEMES = ("bearer", "basic", "digest")


def scrub(value: Any) -> Any:
    """The same data with every secret replaced: by key name, and after a flag in a launch command."""
    if isinstance(value, dict):
        return {key: HIDDEN if item and _KEY.search(str(key)) else scrub(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub(item) for item in value]
    return _FLAG.sub(rf"\1{HIDDEN}", value) if isinstance(value, str) else value


def secrets_in(headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """What must never be shown of these headers, longest first: each value, and each word of it."""
    words = {word for _, value in headers for word in (value, *value.split())}
    found = [word for word in words if len(word) >= LEAST and word.lower() not in _SCHEMES]
    return tuple(sorted(found, key=len, reverse=True))


def hide(text: str, secrets: Iterable[str]) -> str:
    """`text` without the secrets. One of digits only is left inside a longer number: it may be a logprob."""
    for secret in secrets:
        pattern = re.escape(secret)
        text = re.sub(rf"(?<![\d.]){pattern}(?!\d)" if secret.isdigit() else pattern, HIDDEN, text)
    return text
