"""Alone or not, from load figures on both sides of a request."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from fidelity.engines import solitude
from fidelity.engines.solitude import UNKNOWN, Load, Watch, Witness, look

Page = dict[str, Any] | None


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solitude, "_PAUSE", 0.0)


def serve(pages: Sequence[Page], status: int = 200) -> httpx.Client:
    """One page after the other, the last one for ever; None is a 404."""
    left = list(pages)

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/loads"
        page = left.pop(0) if len(left) > 1 else left[0]
        return httpx.Response(404) if page is None else httpx.Response(status, json=page)

    return httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake")


def page(computed: int | None = None, running: int = 0, waiting: int = 0) -> dict[str, Any]:
    rank = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting}
    return {"loads": [rank if computed is None else {**rank, "total_prefill_uncached_tokens": computed}]}


def test_ranks_are_added_up() -> None:
    two = {"loads": [*page(100, running=1)["loads"], *page(50, waiting=2)["loads"]]}
    assert look(serve([two])) == Load(3, 150)
    assert look(serve([{"loads": [*page(100)["loads"], *page()["loads"]]}])) == Load(0, None)


@pytest.mark.parametrize(
    "told",
    [None, {}, {"loads": []}, {"loads": "many"}, {"loads": [{}]}, {"loads": [{"num_running_reqs": "1"}]}, []],
)
def test_what_is_no_load_page_is_none(told: Any) -> None:
    assert look(serve([told])) is None


def test_no_server_is_none() -> None:
    def lost(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    assert look(httpx.Client(transport=httpx.MockTransport(lost), base_url="http://fake")) is None


@pytest.mark.parametrize(
    ("before", "after", "own", "seen"),
    [
        (page(100), page(101), 1, Witness(True, 1)),
        (page(100), page(102), 1, Witness(False, 2)),  # a health probe computed one token more
        (page(100, running=1), page(101), 1, Witness(False, 1)),  # somebody decoded when we began
        (page(100), page(101, running=1), 1, Witness(False, 1)),
        (page(100), page(101, waiting=1), 1, Witness(False, 1)),
        (page(100), page(100), 1, Witness(True, 0)),  # nothing computed: the judge will ask why
        (page(), page(), 1, Witness(True, None)),
        (page(100), page(), 1, Witness(True, None)),
        (page(100), page(5), 1, Witness(True, None)),  # counted anew: the server was restarted
        (page(100), page(400), None, Witness(True, 300)),  # a failed answer has no count of its own
        (page(100), None, 1, UNKNOWN),
    ],
)
def test_what_two_looks_say(before: Page, after: Page, own: int | None, seen: Witness) -> None:
    watch = Watch(serve([before, after]))
    load = watch.before()
    assert load is not None
    watch.sent(own)
    assert watch.after(load) == seen


def test_figures_that_trail_the_reply_are_waited_for() -> None:
    watch = Watch(serve([page(100), page(100, running=1), page(100), page(101)]))
    load = watch.before()
    assert load == Load(0, 100)
    watch.sent(1)
    assert watch.after(load) == Witness(True, 1)


def test_our_own_last_request_is_not_taken_for_somebody_elses() -> None:
    """The second look before comes before the cold send of 193 tokens is counted."""
    watch = Watch(serve([page(0), page(1), page(1), page(194), page(195)]))
    first = watch.before()
    assert first is not None
    watch.sent(1)
    assert watch.after(first) == Witness(True, 1)
    watch.sent(193)
    second = watch.before()
    assert second == Load(0, 194)
    watch.sent(1)
    assert watch.after(second) == Witness(True, 1)


def test_a_server_that_does_not_tell_is_asked_once() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(404)

    watch = Watch(httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake"))
    assert [watch.before(), watch.before()] == [None, None]
    assert asked == ["/v1/loads"]
