"""What the impact probe sends, against a server in memory: roles, namespaces, lengths, what is left out."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.probes.patterns import TOOLS
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS

FAMILIES = {"label": "classifier", "choice": "multiple-choice", "json": "json"}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family of each kind that a pattern asks for."""
    folder = tmp_path_factory.mktemp("bank")
    for name, kind in FAMILIES.items():
        items = "".join(f"  - {{id: w{n}, answer: {name}{n}}}\n" for n in range(14))
        frame = f"  - user: '{{filler}} and now {name} {{answer}}'\n"
        text = f"family: {name}\nkind: {kind}\nabout: say it again\nframes:\n{frame}items:\n{items}"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def over(bank: Path) -> dict[str, Any]:
    return {
        "probes": ["impact"],
        "prompts": {"folder": str(bank), "count": 6},
        "impact": {"prompts": 6, "tokens": 4},
        "resend": {"suspects": [1], "controls": [33], "warmup_sends": 0, "warmup_tokens": 0},
    }


class Chat:
    """A chat endpoint in front of the fake: it calls the tool, a `broken` one not where the prompt's last
    token is computed alone."""

    def __init__(self, fake: Any, *, broken: bool = False) -> None:
        self.fake, self.broken, self.bodies = fake, broken, list[dict[str, Any]]()

    def __call__(self, request: httpx.Request) -> httpx.Response | None:
        if request.url.path != "/v1/chat/completions":
            return None
        body = json.loads(request.content)
        self.bodies.append(body)
        ids = tuple(self.fake.encode(body["messages"]))
        cached = self.fake._lookup(ids, body["extra_key"])
        self.fake.computed += len(ids) - cached
        call = {"type": "function", "function": {"name": "give_city", "arguments": '{"city": "Paris"}'}}
        lost = self.broken and len(ids) - cached == 1
        message = {"content": "Hg"} if lost else {"content": None, "tool_calls": [call]}
        usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": cached}}
        return httpx.Response(200, json={"choices": [{"message": message}], "usage": usage})


def test_each_prompt_is_sent_cold_cold_and_from_the_cache(play: Any, fake_sglang: Any, over: Any) -> None:
    fake = fake_sglang()
    fake.sees = Chat(fake)
    played = play(fake, over)
    sent = [obs for obs in played.records if obs.probe == "impact"]
    groups: dict[str, list[Any]] = {}
    for obs in sent:
        groups.setdefault(obs.group, []).append(obs)
    assert len(groups) == 6 * 6
    for group in groups.values():
        cold, cold2, hit = group
        assert [obs.role for obs in group] == ["cold", "cold2", "hit"]
        assert cold.namespace == hit.namespace != cold2.namespace
        assert (cold.answer.cached_tokens, hit.answer.cached_tokens, hit.length) == (0, 192, 193)
    assert len({obs.namespace for obs in sent}) == 2 * len(groups)
    tokens = {obs.cell: obs.max_new_tokens for obs in sent}
    assert tokens == {
        "regenerate": 4,
        "single token": 1,
        "multiple choice": 1,
        "json": 24,
        "tool call": 48,
        "long answer": 4,
    }
    asked = [body["token_ids_logprob"] for body in fake.bodies if "token_ids_logprob" in body]
    letters = [fake.words.index(letter) for letter in "ABCD"]
    assert asked == [letters] * 18
    assert all(body["tools"] == list(TOOLS) and body["temperature"] == 0 for body in fake.sees.bodies)
    assert {cell.state for cell in played.cells().values()} == {PASS}


def test_a_fault_at_one_token_harms_every_pattern(play: Any, fake_sglang: Any, over: Any) -> None:
    fake = fake_sglang(fault="nan")
    fake.affects = lambda computed, _: (
        computed == 1 and fake.bodies[-1]["sampling_params"]["max_new_tokens"] > 0
    )
    over["impact"]["tokens"] = 1
    fake.sees = Chat(fake, broken=True)
    found = play(fake, over).cells()
    assert {name: cell.state for name, cell in found.items()} == {
        "regenerate": FAIL,
        "single token": FAIL,
        "multiple choice": FAIL,
        "json": FAIL,
        "tool call": INCONCLUSIVE,  # six calls lost of six: p = 0.016
        "long answer": FAIL,
    }


def test_without_a_chat_endpoint_the_others_run(play: Any, fake_sglang: Any, over: Any) -> None:
    played = play(fake_sglang(), over)
    found = played.cells()
    tool = found.pop("tool call")
    assert (tool.state, tool.reason) == (
        NOT_APPLICABLE,
        'its chat endpoint refuses: HTTP 404: {"detail":"Not Found"}',
    )
    assert {cell.state for cell in found.values()} == {PASS}
    assert played.manifest.arms["none"].skipped == {"impact, tool call": tool.reason}


def test_what_the_server_says_it_lacks_is_not_tried(play: Any, fake_sglang: Any, over: Any) -> None:
    fake = fake_sglang(info={"tool_call_parser": None})
    assert play(fake, over).cells()["tool call"].state == NOT_APPLICABLE
    assert "/v1/chat/completions" not in fake.paths
    off = fake_sglang(info={"disable_radix_cache": True})
    assert play(off, over, name="off").cells()["impact"].state == NOT_APPLICABLE


def test_a_bank_without_a_kind_leaves_its_pattern_out(
    play: Any, fake_sglang: Any, over: Any, prompt_folder: Path
) -> None:
    over["prompts"]["folder"] = str(prompt_folder)
    found = play(fake_sglang(), over).cells()
    assert found["json"].reason == "the plan has no prompts of the kind json"
    assert (found["json"].state, found["regenerate"].state) == (NOT_APPLICABLE, PASS)


def test_a_resumed_run_asks_nothing_twice(play: Any, fake_sglang: Any, over: Any) -> None:
    first = play(fake_sglang(), over, stop_after=70)
    kept = {obs.order for obs in first.records}
    again = play(fake_sglang(), resume=first.directory)
    seen = [(obs.group, obs.role, obs.attempt) for obs in again.records if obs.probe == "impact"]
    assert len(seen) > len(kept)
    whole = [group for group, role, _ in seen if role == "hit"]
    assert len(whole) == len(set(whole)) == 5 * 6
