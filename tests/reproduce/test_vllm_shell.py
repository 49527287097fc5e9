"""A reproduction against vLLM: its own path and body, in a namespace that the shell can fill in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.reproduce import replay as replays
from fidelity.reproduce.choose import Reproduction
from fidelity.reproduce.shell import script
from fidelity.servers.running import RunningServer
from fidelity.verdicts import CellVerdict

from ..fake_vllm import FakeVLLM
from .conftest import FACTS, NAN


@pytest.fixture
def found(
    manifest: Manifest, cell: Callable[..., CellVerdict], pair: Callable[..., list[Observation]], chosen: Any
) -> Reproduction:
    manifest.arms["none"].facts = {**FACTS, "engine": "vllm", "version": "0.32.0"}
    chosen_one: Reproduction = chosen(cell(), pair("a/b", **NAN))
    return chosen_one


def test_the_script_sends_completions_and_no_salt_that_vllm_refuses(found: Reproduction, bodies: Any) -> None:
    text = script(found, "", "fidelity reproduce RUN")
    cold, hit = bodies(text)
    assert text.count("http://server:30000/v1/completions") == 2
    assert (cold["prompt"], cold["cache_salt"]) == ([1] * 193, "k|a")
    assert hit == {**cold, "logprobs": hit["logprobs"]}


def test_it_is_replayed_over_the_same_api(found: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeVLLM(fault="nan", words=[f"w{n}" for n in range(200)])
    client: httpx.Client = fake.client()

    class Attached:
        def __enter__(self) -> RunningServer:
            return RunningServer(url="http://fake", owned=False, client=client)

        def __exit__(self, *_: object) -> None:
            client.close()

    monkeypatch.setattr(replays, "attach", lambda _: Attached())
    again = replays.replay(replace(found, target=found.target), found.target)
    assert (again.state, fake.paths.count("/v1/completions")) == ("reproduced", 2)
