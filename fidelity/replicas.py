"""The addresses of the replicas that one check looks at, and the arms that they become."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fidelity.errors import UsageError
from fidelity.servers.address import check_url


def addresses(urls: Sequence[str], file: Path | None) -> list[str]:
    """Those given, then those of the file: one a line, what follows a # is a comment. Raises UsageError."""
    found = list(urls)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(
                f"cannot read the addresses in {file}: {exc}", "give a text file, one URL a line"
            ) from exc
        # A # inside an address is left there for `check_url` to complain of.
        bare = [f" {line}".partition(" #")[0].strip() for line in lines]
        found += [line for line in bare if line]
    if not found:
        raise UsageError("nothing says which server to check", "give http://HOST:PORT, or --urls-file FILE")
    return [check_url(url) for url in found]


def arms(urls: Sequence[str]) -> list[dict[str, str]]:
    """One arm for each, named by host and port, and by a number where two of them share that."""
    named: list[dict[str, str]] = []
    for url in urls:
        parts = urlsplit(url)
        where = f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)
        name = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in where)
        taken = {arm["name"] for arm in named}
        numbered = [name, *(f"{name}-{number}" for number in range(2, len(urls) + 1))]
        named.append({"name": next(one for one in numbered if one not in taken), "url": url})
    return named
