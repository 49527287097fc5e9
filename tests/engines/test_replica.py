"""Who answered behind a router, as answers tell it."""

import httpx

from fidelity.engines import replica
from fidelity.engines.wire import post


def test_a_request_without_an_answer_names_nobody() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/deaf":
            raise httpx.ReadTimeout("timed out", request=request)
        return httpx.Response(200, json={}, headers={"x-replica-id": "pod-0"})

    with httpx.Client(base_url="http://router", transport=httpx.MockTransport(handle)) as client:
        replica.watch(client, None)
        post(client, "/", {})
        assert replica.last(client) == "pod-0"
        post(client, "/", {})
        post(client, "/deaf", {})
        assert replica.last(client) is None
