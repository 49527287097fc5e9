"""What every API's answers have in common."""

import httpx
import pytest

from fidelity.engines.wire import first_found
from fidelity.errors import NotWhatWasAskedError


@pytest.mark.parametrize(
    ("location", "told"),
    [
        (
            "https://me:not-a-real-key@login.example:8443/sso?token=not-a-real-key#not-a-real-key",
            "https://login.example:8443/sso",
        ),
        ("/elsewhere?key=not-a-real-key", "http://server/elsewhere"),
        (None, "another address"),
    ],
)
def test_a_redirect_is_named_without_what_may_be_a_secret(location: str | None, told: str) -> None:
    headers = {} if location is None else {"location": location}
    transport = httpx.MockTransport(lambda _: httpx.Response(302, headers=headers))
    with (
        httpx.Client(base_url="http://server", transport=transport) as client,
        pytest.raises(NotWhatWasAskedError) as caught,
    ):
        first_found(client, ("/v1/models",))
    assert caught.value.message == f"http://server redirects to {told}"
