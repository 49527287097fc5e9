"""What the tasks probe sends, against a server in memory: fitted and natural lengths, what is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidelity.verdicts import NOT_APPLICABLE, NOT_EXERCISED


@pytest.fixture
def over(tmp_path: Path) -> dict[str, Any]:
    return {
        "probes": ["tasks"],
        "tasks": {"files": [str(tmp_path / "own.jsonl")], "tokens": 1},
        "resend": {"suspects": [1], "controls": [33], "warmup_sends": 0, "warmup_tokens": 0},
    }


def write(folder: Path, *questions: str) -> None:
    lines = [json.dumps({"question": text, "answer": text.split()[-1]}) for text in questions]
    (folder / "own.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_question_is_fitted_where_it_says_and_sent_as_it_is_elsewhere(
    play: Any, fake_sglang: Any, over: Any, tmp_path: Path
) -> None:
    long = " ".join(str(number) for number in range(100))
    write(tmp_path, "Lines {filler} are done, say yes", f"After {long} say no", "short one")
    played = play(fake_sglang(), over)
    sent = [obs for obs in played.records if obs.probe == "tasks"]
    assert [(obs.prompt, obs.role) for obs in sent] == [
        (f"own:{n}", role) for n in (1, 2, 3) for role in ("cold", "hit")
    ]
    fitted, natural, short = sent[1::2]
    assert (fitted.length, fitted.kind, fitted.answer.cached_tokens) == (193, "suspect", 192)
    assert (natural.length, natural.kind, natural.answer.cached_tokens) == (105, "control", 64)
    assert (short.kind, short.answer.cached_tokens) == ("control", 0)
    cell = played.cells()["own"]
    assert "hits 2 of 3, 1 with a suspect tail" in cell.reason
    assert cell.missed == {
        f"a prompt of {short.length} tokens is not served from the cache by a second send": 1
    }
    figures = {one.name: one.value for one in cell.readings}
    assert figures["accuracy, cold"] == figures["accuracy, hit"] == 1


def test_a_broken_line_ends_the_run_before_the_first_request(
    play: Any, fake_sglang: Any, over: Any, tmp_path: Path
) -> None:
    write(tmp_path, "a b")
    with (tmp_path / "own.jsonl").open("a") as file:
        file.write('{"question": "c"}\n')
    fake = fake_sglang()
    played = play(fake, over)
    assert played.manifest.exit_code == 2
    assert played.manifest.error.startswith(f"{tmp_path / 'own.jsonl'}, line 2: the key 'answer' is missing")
    assert "/generate" not in fake.paths


def test_a_question_beyond_the_context_is_left_out_and_said(
    play: Any, fake_sglang: Any, over: Any, tmp_path: Path
) -> None:
    long = " ".join(str(number) for number in range(300))
    write(tmp_path, f"After {long} say no", "{filler} say yes")
    over["tasks"]["limit"] = 2
    played = play(fake_sglang(info={"context_length": 256}), over)
    assert {obs.prompt for obs in played.records if obs.probe == "tasks"} == {"own:2"}
    (said,) = [text for text in played.verdict.arms[0].warnings if "left out" in text]
    assert said == "tasks: own:1 is left out: 305 tokens and 1 new ones, context 256"


def test_a_server_that_serves_nothing_from_the_cache(
    play: Any, fake_sglang: Any, over: Any, tmp_path: Path
) -> None:
    write(tmp_path, *(f"{{filler}} number {n}" for n in range(12)))
    assert play(fake_sglang(caching=False), over).cells()["own"].state == NOT_EXERCISED
    off = fake_sglang(info={"disable_radix_cache": True})
    assert play(off, over, name="off").cells()["tasks"].state == NOT_APPLICABLE
