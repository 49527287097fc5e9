"""The token ids of a prompt that the cache is to hold behind other words only.

An engine that moves what it has cached (llama.cpp's `n_cache_reuse`) serves such a prompt states that were
computed with those words in view, and reports them as an honest hit.
"""

import hashlib
from collections.abc import Sequence

WORDS = 20
"""Tokens put in front of a prompt: other ones than it begins with."""

LEAD = 4
"""Tokens that a moved prompt begins with, its own in every run, so that nothing that was sent before begins
alike."""

SHARED = 8
"""Tokens served that a prompt with such a beginning may by chance share with an earlier one."""


def led(ids: Sequence[int], name: str) -> list[int]:
    """The prompt behind LEAD of its own tokens, chosen by the name."""
    digest = hashlib.sha256(name.encode()).digest()
    return [ids[int.from_bytes(digest[2 * n : 2 * n + 2]) % len(ids)] for n in range(LEAD)] + list(ids)


def behind_words(ids: Sequence[int]) -> list[int]:
    """The prompt behind WORDS of its own tokens that begin otherwise than it does: no prefix is shared."""
    start = next((n for n in range(len(ids) // 2, len(ids) - WORDS) if ids[n] != ids[0]), 1)
    return [*ids[start : start + WORDS], *ids]
