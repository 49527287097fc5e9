"""Namespaces of the prefix cache for servers that have none: a salt at the start of the prompt."""

import hashlib
from collections.abc import Mapping, Sequence

DIGITS = 12


def salt(namespace: str) -> str:
    """DIGITS decimal digits of a hash of the namespace, with a space between any two: tokenizers read each as
    one and the same number of tokens, so that all salts are equally long."""
    number = int.from_bytes(hashlib.sha256(namespace.encode()).digest()[:8])
    return " ".join(str(number % 10**DIGITS).zfill(DIGITS))


def salted(messages: Sequence[Mapping[str, str]], namespace: str) -> list[dict[str, str]]:
    """The messages with the namespace's salt as the first line of the first: what follows is then cached for
    this namespace alone."""
    first, *rest = messages
    line = f"{salt(namespace)}\n{first['content']}"
    return [{**first, "content": line}, *map(dict, rest)]
