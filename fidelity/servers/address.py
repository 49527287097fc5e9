"""The address of a server that runs already: checked before it is written into any record."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from fidelity.errors import PlanError


def check_url(url: str) -> str:
    """The URL without its last slash. Raises PlanError for one that is none, or that would carry a secret
    into the record."""
    # Every command reads a plan, and few of them send anything.
    import httpx

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host is not None:
            # What the client would stumble over; the name is encoded again where it is looked up.
            httpx.URL(url).host.encode("idna")
    except (ValueError, httpx.InvalidURL):
        host, port = None, None
    if (
        not host
        or any(not sign.isprintable() or sign.isspace() for sign in url)
        or parts.scheme not in ("http", "https")
        or port == 0
    ):
        # Whatever stands before an @ may be a password.
        raise PlanError(f"'{url.rpartition('@')[2]}' is not a URL", "give it as http://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise PlanError(
            f"the address of {host} holds more than scheme, host, port and path",
            "give a key in FIDELITY_API_KEY or --header-file: an address is written into the record",
        )
    return url.rstrip("/")


def unfit_addresses(urls: Sequence[str]) -> str | None:
    """Why these cannot be the addresses of as many servers, None when they can."""
    try:
        checked = [check_url(url) for url in urls]
    except PlanError as exc:
        return exc.message
    twice = [url for number, url in enumerate(checked) if url in checked[:number]]
    return f"{twice[0]} is given twice: each arm is a server of its own" if twice else None
