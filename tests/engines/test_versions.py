"""Old and new releases of sglang: what they say of themselves and how they answer, from samples."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.compare import broken_rules
from fidelity.engines import solitude, vocabulary
from fidelity.engines.facts import read_facts
from fidelity.engines.sglang import read_response
from fidelity.engines.versions import at_least, release

SAMPLES = json.loads((Path(__file__).parent / "samples" / "versions.json").read_text(encoding="utf-8"))
VERSIONS = ("0.5.9", "0.5.13", "0.5.16", "0.5.17", "0.5.20", "0.5.21", "0.5.23")


@pytest.fixture(params=VERSIONS)
def sample(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SAMPLES[request.param]


def test_every_sample_says_where_it_is_from() -> None:
    assert tuple(SAMPLES) == VERSIONS
    for version, sample in SAMPLES.items():
        recorded = version in ("0.5.17", "0.5.21")
        assert sample["source"].startswith("recorded" if recorded else "constructed")


def test_what_a_server_says_of_itself(sample: dict[str, Any]) -> None:
    facts = read_facts(sample["server_info"], sample["model_info"])
    expect = sample["expect"]
    assert (facts.strategy, facts.grid) == (expect["strategy"], expect["grid"])
    assert len(facts.notes) == expect["notes"]
    assert facts.prefix_cache
    assert facts.vocab_size is None
    assert facts.dp_key == expect["dp key"]
    assert vocabulary.can_be_asked(facts) is expect["tells vocabulary"]
    assert "s3cret" not in json.dumps(facts.raw)


def test_a_cold_send_and_a_hit(sample: dict[str, Any]) -> None:
    cold, hit = (read_response(200, json.dumps(sample[name]["body"]), 0.1)[0] for name in ("cold", "hit"))
    assert (cold.cached_tokens, cold.computed) == (0, 193)
    assert (hit.cached_tokens, hit.computed) == (192, 1)
    assert len(hit.top[0]) == 5
    assert (cold.faces, hit.faces, cold.error, hit.error) == ({}, {}, None, None)


def test_a_nan_by_the_face_it_has_in_that_release(sample: dict[str, Any]) -> None:
    told = sample["nan hit"]
    (answer,) = read_response(told["status"], json.dumps(told["body"]), 0.1)
    assert answer.faces == sample["expect"]["nan faces"]
    assert broken_rules(answer)[0].startswith("NaN")
    assert not answer.failed


def test_load_figures_with_and_without_a_count_of_tokens(sample: dict[str, Any]) -> None:
    page = httpx.MockTransport(lambda _: httpx.Response(200, json=sample["loads"]))
    load = solitude.look(httpx.Client(transport=page, base_url="http://fake"))
    new = at_least(sample["server_info"]["version"], (0, 5, 20))
    assert load == (solitude.Load(0, 386) if new else solitude.Load(3, None))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.5.21", (0, 5, 21)),
        ("v0.5.9", (0, 5, 9)),
        ("0.5.13.post1", (0, 5, 13)),
        ("0.5.21+cpu", (0, 5, 21)),
        ("0.5.21rc1", (0, 5, 21)),
        ("0.5.22.dev3+gabc", None),
        ("0.0.0.dev0", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_release_numbers(text: str, number: tuple[int, int, int] | None) -> None:
    assert release(text) == number
    assert at_least(text, (0, 5, 21)) is (number is not None and number >= (0, 5, 21))


@pytest.mark.parametrize(
    ("version", "given", "strategy"),
    [
        ("0.5.13", {}, "no_buffer"),
        ("0.5.14", {}, "extra_buffer"),
        ("0.5.16", {"disable_overlap_schedule": True}, "no_buffer"),
        ("0.5.16", {"disable_overlap_schedule": True, "page_size": 64}, "extra_buffer"),
        ("0.0.0.dev0", {}, "extra_buffer"),
    ],
)
def test_what_auto_becomes(version: str, given: dict[str, Any], strategy: str) -> None:
    told = {"version": version, "mamba_radix_cache_strategy": "auto", **given}
    facts = read_facts(told, {"model_type": "qwen3_next"})
    assert facts.strategy == strategy
    assert f"{strategy} is assumed" in facts.notes[0]
