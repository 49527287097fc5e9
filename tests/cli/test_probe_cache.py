"""`fidelity probe-cache`: what it concludes of servers whose cache is known, and what it sends."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ..fake_openai import FakeOpenAI
from ..fake_sglang import FakeSglang
from .conftest import Done
from .counting import serving
from .embedded import served

Here = Callable[..., Done]


@pytest.mark.parametrize(
    ("options", "guard", "says"),
    [
        ({}, "none", "recurrent checkpoints every 64 tokens"),
        ({}, "retreat", "recurrent checkpoints every 64 tokens; a hit leaves at least 2 to 11 tokens"),
        (
            {"strategy": "no_buffer"},
            "none",
            "the same prompt again is not served, a longer one resumes where one before it ended",
        ),
        ({"fault": "never-hits"}, "none", "never hits: none of 4 sends"),
        ({"fault": "null-counts"}, "none", "the server does not tell its cached tokens"),
        ({"fault": "wrong-count"}, "none", "the counts contradict each other"),
    ],
)
def test_the_embedded_engine(
    options: dict[str, str], guard: str, says: str, here: Here, tmp_path: Path
) -> None:
    with served(tmp_path, guard, **options) as url:
        done = here("probe-cache", url)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith(f"cache: {says}")


def test_pages_with_the_evidence_as_json(here: Here) -> None:
    info = {"uses_mamba_radix_cache": False, "page_size": 64}
    with serving(FakeSglang(info=info, strategy="attention only")) as server:
        done = here("probe-cache", server.url, "--json")
        sent = len(server.of("POST", "/generate"))
    data = json.loads(done.out)
    assert data["told"] == {"grid": 64, "strategy": "attention only"}
    assert (data["kind"], data["says"]) == ("pages", "whole pages of 64 tokens")
    assert sent == len(data["sends"]) == 12
    assert {one["sent"] - one["cached"] == one["tail"] for one in data["sends"]} == {True}


@pytest.mark.parametrize(
    ("step", "says"),
    [(1, "every token (full reuse): tail 1 for every length"), (16, "multiples of 16 tokens")],
)
def test_a_server_with_nothing_but_chat(step: int, says: str, here: Here) -> None:
    with serving(FakeOpenAI(step=step)) as server:
        said = here("probe-cache", server.url, "--dry-run")
        before = len(server.of("POST", "/v1/chat/completions"))
        done = here("probe-cache", server.url)
        sent = len(server.of("POST", "/v1/chat/completions"))
    assert (said.code, before) == (0, 0)
    assert "at most 8 prompts" in said.out
    assert "4 more before" in said.out
    assert sent == 12
    assert f"cache: {says}" in done.out


def test_a_server_that_fails_is_no_conclusion(here: Here) -> None:
    with serving(FakeSglang()) as server:
        bad = httpx.Response(500, json={"error": {"message": "out of memory"}})
        server.way = lambda method, path, number: bad if path == "/generate" else None
        done = here("probe-cache", server.url)
        assert len(server.of("POST", "/generate")) == 3
    assert done.code == 3
    assert "not found out: a send failed" in done.err
