"""A trusted run on file: what is kept of it, what is read back, what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidelity import manifest as manifests
from fidelity import plan as plans
from fidelity.engines.facts import ServerFacts
from fidelity.errors import PlanError, ResultsError
from fidelity.inputs import check_inputs
from fidelity.observations import Observation, Recorder
from fidelity.reference import Reference, load, of_run, other_model, save
from fidelity.runner import OBSERVATIONS

FACTS = ServerFacts("sglang", "0.5.21", "models/Fake-8B", vocab_size=512)


@pytest.fixture
def trusted(observation: Callable[..., Observation]) -> Reference:
    """Two prompts cold and cold again, one of them tried twice, and one generated answer."""

    def sent(prompt: str, role: str, **over: Any) -> Observation:
        ids = [len(prompt), 2, 3] if role == "cold" else []
        given = {"role": role, "prompt": prompt, "group": prompt, "cached_tokens": 0, "input_ids": ids}
        return observation(**{**given, **over})

    record = [sent(prompt, role) for prompt in ("a", "bb") for role in ("cold", "cold2")]
    record[1].answer.top[0][4] = (9, -math.inf)
    record.append(sent("ccc", "cold", status=500, error="HTTP 500: secret body", raw="secret body"))
    record.append(sent("ccc", "cold", attempt=1, status=500, error="HTTP 500: nan", faces={"http nan": 1}))
    made = {"probe": "decode", "cell": "T=0", "group": "d", "prompt": "open"}
    record.append(
        observation(role="decode", input_ids=[7, 8], output_ids=[5, 6], logprobs=[-0.1] * 2, **made)
    )
    record += [
        observation(role=role, scored=[-0.1, value], scored_top=[[(5, -0.1)], [(6, value)]], **made)
        for role, value in (("rescore", -0.2), ("rescore2", -0.25))
    ]
    manifest = manifests.Manifest("r1", "2026-01-01T00:00:00+0000", plans.build({"probes": ["resend"]}))
    facts = {name: getattr(FACTS, name) for name in ("engine", "version", "model", "simulated", "vocab_size")}
    manifest.arms["none"] = manifests.ArmRecord("none", 1, facts=facts, prompts=["a", "bb"])
    return of_run(manifest, record)


def test_what_is_kept(trusted: Reference) -> None:
    found = [(told.role, told.ids) for told in trusted.told]
    assert found == [
        ("cold", (1, 2, 3)),
        ("cold2", (1, 2, 3)),
        ("cold", (2, 2, 3)),
        ("cold2", (2, 2, 3)),
        ("cold", (3, 2, 3)),
        ("rescore", (7, 8, 5, 6)),
        ("rescore2", (7, 8, 5, 6)),
    ]
    assert trusted.source.prompts == ("a", "bb")
    assert "models/Fake-8B" in trusted.source.described()


def test_a_file_says_what_the_run_says(trusted: Reference, tmp_path: Path) -> None:
    path = tmp_path / "reference.jsonl"
    save(trusted, path)
    again = load(str(path))
    assert again.source == trusted.source
    for one, other in zip(again.told, trusted.told, strict=True):
        assert (one.role, one.prompt, one.ids) == (other.role, other.prompt, other.ids)
        names = ("scored", "scored_top", "faces")
        if one.role.startswith("cold"):
            names = ("top", "logprobs", "output_ids", "cached_tokens", "prompt_tokens", "faces", "text")
        for name in names:
            assert getattr(one.answer, name) == getattr(other.answer, name)
    assert not any(told.answer.failed for told in again.told)
    assert "secret" not in path.read_text()
    assert again.told[1].answer.top[0][4] == (9, -math.inf)


def test_drafts_are_kept_by_the_ids_of_their_prompts(
    observation: Callable[..., Observation], trusted: Reference, tmp_path: Path
) -> None:
    made = {"probe": "draft", "cell": "alone", "prompt": "open", "input_ids": [7, 8], "output_ids": [5, 6]}
    spec = {"spec_accept_length": 2.5, "spec_verify_ct": 4.0}
    sent = [
        observation(role=role, spec=spec, **{**made, **over})
        for role, over in (("decode", {}), ("timed", {}), ("row", {"cell": "together"}))
    ]
    manifest = manifests.Manifest("r3", "", plans.build({"probes": ["draft"]}))
    manifest.arms["none"] = manifests.ArmRecord("none", 1, facts=vars(FACTS).copy(), prompts=["open"])
    save(of_run(manifest, sent), tmp_path / "drafts.jsonl")
    (told,) = load(str(tmp_path / "drafts.jsonl")).told
    assert (told.role, told.ids, told.answer.spec) == ("drafted", (7, 8), spec)


def changed(path: Path, change: Callable[[list[str]], list[str]]) -> Path:
    lines = path.read_text().splitlines(keepends=True)
    other = path.with_name(f"{len(list(path.parent.iterdir()))}.jsonl")
    other.write_text("".join(change(lines)))
    return other


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:20]], "cut short: line 8 is torn"),
        (lambda lines: lines[:-1], "cut short: line 8 is torn or missing, 7 answers are announced"),
        (lambda lines: [*lines[:2], lines[2][:20] + "\n", *lines[3:]], "line 3 is no answer of a reference"),
        (lambda lines: [lines[0].replace('"schema":1', '"schema":2'), *lines[1:]], "is of schema 2"),
        (lambda lines: lines[1:], "its first line is no header of one"),
        (lambda lines: [], "its first line is no header of one"),
        (lambda lines: [line.replace('"cold2"', '"warm"') for line in lines], "unknown role 'warm'"),
    ],
)
def test_a_file_that_is_none(change: Any, says: str, trusted: Reference, tmp_path: Path) -> None:
    path = tmp_path / "reference.jsonl"
    save(trusted, path)
    with pytest.raises(ResultsError, match=says):
        load(str(changed(path, change)))


def test_places_that_hold_none(trusted: Reference, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot read the reference"):
        load(str(tmp_path / "nothing"))
    with pytest.raises(ResultsError, match="is not a run"):
        load(str(tmp_path))
    empty = manifests.Manifest("r2", "2026-01-01T00:00:00+0000", plans.build({}))
    empty.save(tmp_path)
    Recorder(tmp_path / OBSERVATIONS).close()
    with pytest.raises(ResultsError, match="no cold answers of arm none"):
        load(str(tmp_path))
    with pytest.raises(ResultsError, match="cannot write"):
        save(trusted, tmp_path / "no" / "reference.jsonl")


def test_a_place_to_save_to_is_looked_at_before_the_run(tmp_path: Path) -> None:
    for path, says in ((tmp_path, "is a folder"), (tmp_path / "no" / "file", "there is no folder")):
        with pytest.raises(ResultsError, match=says):
            check_inputs(plans.build({"save_reference": str(path)}))


@pytest.mark.parametrize(
    ("model", "vocabulary", "why"),
    [
        ("other/fake-8b", 512, None),
        ("Fake-8B/", None, None),
        ("Fake-9B", 512, "the reference is of Fake-9B, the server serves models/Fake-8B"),
        ("Fake-8B", 513, "the reference has a vocabulary of 513 ids, the server one of 512"),
    ],
)
def test_another_model(model: str, vocabulary: int | None, why: str | None) -> None:
    assert other_model(model, vocabulary, FACTS) == why


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"probes": ["reference"]}, "needs a reference"),
        ({"probes": ["speed"], "reference": "run"}, "the plan has none of them"),
        ({"arms": [{"name": "reference"}], "reference": "run"}, "no arm can have the name"),
        ({"reference": "http://a:1?key=x"}, "more than scheme, host, port and path"),
        (
            {"target": {"kind": "attach", "url": "http://a:1"}, "reference": "http://a:1/"},
            "is the server under test itself",
        ),
    ],
)
def test_plans_that_cannot_have_one(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plans.build(given)


def test_the_probe_comes_last_and_can_be_left_out() -> None:
    assert plans.build({"reference": "run"}).selected == ("resend", "decode", "reference")
    assert plans.build({"reference": "run", "also": ["sweep"]}).selected[-1] == "reference"
    assert plans.build({"reference": "run", "skip": ["reference"]}).selected == ("resend", "decode")
    assert json.loads(plans.build({}).model_dump_json())["reference"] is None
