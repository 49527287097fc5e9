from typing import Any

import pytest

from fidelity.evidence import MISMATCHED, Group, groups_of, missed, not_cold
from fidelity.observations import Observation
from fidelity.probes.cells import Cell

CELL = Cell("L=193 tail=1", "suspect", 193, 1, "")


@pytest.fixture
def send(observation: Any) -> Any:
    """A record of the group a/b@193; `role` first."""

    def make(role: str, **given: Any) -> Observation:
        cached = {"hit": 192, "show-hit": 192}.get(role, 0)
        return observation(
            **{"role": role, "prompt": "a/b", "group": "a/b@193", "cached_tokens": cached, **given}
        )

    return make


def test_a_group_holds_its_sends_by_role(send: Any) -> None:
    roles = ["cold", "cold2", "seed", "hit", "hit", "show-cold", "show-hit"]
    records = [send(role, order=n) for n, role in enumerate(roles)]
    (group,) = groups_of([send("warmup", group=""), send("screen", order=9), *records])
    assert group == Group("a/b", records[0], records[1], records[3:5], records[5], records[6])


def test_groups_are_kept_apart(send: Any) -> None:
    records = [
        send("cold"),
        send("hit"),
        send("cold", group="a/b@225", length=225),
        send("cold", group="c/d@193", prompt="c/d"),
        send("hit", group="c/d@193", prompt="c/d"),
    ]
    assert [(group.prompt, len(group.hits)) for group in groups_of(records)] == [
        ("a/b", 1),
        ("a/b", 0),
        ("c/d", 1),
    ]


def test_the_last_attempt_is_judged_and_earlier_ones_are_marked(send: Any) -> None:
    first = [send("cold"), send("hit", status=429, error="HTTP 429")]
    second = [send("cold", attempt=1), send("hit", attempt=1), send("hit", attempt=1)]
    groups = groups_of([*first, *second])
    assert [(group.last, len(group.hits)) for group in groups] == [(False, 1), (True, 2)]


def test_a_send_without_its_cold_one_is_nothing_to_judge(send: Any) -> None:
    assert groups_of([send("hit"), send("cold2")]) == []


def hit_of(send: Any, cold: dict[str, Any] | None = None, **given: Any) -> tuple[Group, Observation]:
    group = Group("a/b", send("cold", **(cold or {})))
    return group, send("hit", **given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, None),
        ({"cached_tokens": 0}, "no hit: cached_tokens 0 instead of 192"),
        ({"cached_tokens": 128}, "cached_tokens 128 instead of 192"),
        ({"cached_tokens": None}, "the server reports no cached_tokens"),
        ({"prompt_tokens": 194}, "prompt_tokens 194 instead of 193"),
        ({"prompt_tokens": None}, "prompt_tokens None instead of 193"),
        ({"status": 429, "error": "HTTP 429"}, "the request failed"),
        ({"mismatched": True}, MISMATCHED),
        ({"cold": {"mismatched": True}}, MISMATCHED),
        ({"cold": {"cached_tokens": 128}}, "the cold send was served from the cache"),
        ({"cold": {"status": 0, "error": "gone"}}, "the cold request failed"),
        # The tail of a NaN that came as an HTTP 500 is not known: it proves no path, though it is corrupt.
        (
            {"status": 500, "error": "HTTP 500", "faces": {"http nan": 1}, "cached_tokens": None},
            "the server reports no cached_tokens",
        ),
    ],
)
def test_why_a_hit_proves_nothing(given: dict[str, Any], reason: str | None, send: Any) -> None:
    group, hit = hit_of(send, **given)
    assert missed(group, hit, CELL, structural=False) == reason


def test_under_a_guard_that_leaves_no_such_tail_its_own_prediction_counts(send: Any) -> None:
    for cached in (0, 128):
        group, hit = hit_of(send, cached_tokens=cached, expected_cached=cached)
        assert missed(group, hit, CELL, structural=True) is None
        assert missed(group, hit, CELL, structural=False)
    group, hit = hit_of(send, cached_tokens=64, expected_cached=128)
    assert missed(group, hit, CELL, structural=True) == "cached_tokens 64 instead of 128"


def test_what_makes_a_cold_send_cold(send: Any) -> None:
    assert not_cold(send("cold")) is None
    assert not_cold(send("cold", cached_tokens=64)) == "the cold send was served from the cache"
    assert not_cold(send("cold", status=429, error="HTTP 429")) == "the cold request failed"
    nan = {"status": 500, "error": "HTTP 500", "faces": {"http nan": 1}, "cached_tokens": None}
    assert not_cold(send("cold", **nan)) is None  # an answer, and a broken one
