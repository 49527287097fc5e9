"""The shipped profiles: their cards tell the truth about the files, and the model knows its answers."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from fidelity.refserver import weights
from fidelity.refserver.draft import FILE, load_draft
from fidelity.refserver.model import Model
from fidelity.refserver.moe import Experts
from fidelity.refserver.training.corpus import load_bank
from fidelity.refserver.training.evaluate import SURE, cases, run

PROFILES = weights.PROFILES
SAMPLE_EVERY = 16


@pytest.fixture(scope="module", params=["quiz-state", "quiz-kv"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def card(profile: str) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((PROFILES / profile / "card.json").read_text(encoding="utf-8"))
    return card


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(PROFILES / "tokenizer.json"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_card_belongs_to_the_files(profile: str, card: dict[str, Any]) -> None:
    assert card["name"] == profile
    assert card["sha256"] == digest(PROFILES / profile / "weights.npz") == weights.load(profile).sha256
    assert card["tokenizer_sha256"] == digest(PROFILES / "tokenizer.json")
    assert card["licence"] == "Apache-2.0"
    assert card["bytes"] == (PROFILES / profile / "weights.npz").stat().st_size < 2_500_000


def test_the_draft_head_belongs_to_the_weights(profile: str, card: dict[str, Any]) -> None:
    loaded = weights.load(profile)
    assert card["draft"]["target_sha256"] == loaded.sha256
    assert card["draft"]["bytes"] == (PROFILES / profile / FILE).stat().st_size < 400_000
    assert load_draft(profile, loaded)["mtp.fc.weight"].shape == (128, 256)


def test_card_counts_every_item(card: dict[str, Any]) -> None:
    bank = load_bank()
    assert {"65", "193", "225", "705"} <= set(card["accuracy"]["capital"])
    for family in bank:
        for length, row in card["accuracy"][family.name].items():
            assert row["of"] == len(family.items), (family.name, length)
    names = {f"{family.name}/{item['id']}" for family in bank for item in family.items}
    assert set(card["wrong_or_unsure"]) <= names


def test_enough_items_are_right_and_sure_at_the_probes_lengths(card: dict[str, Any]) -> None:
    for length in ("193", "194", "225", "705", "706"):
        sure = sum(row[length]["right_and_sure"] for row in card["accuracy"].values())
        assert sure >= 320, length


@pytest.mark.parametrize("length", [65, 193, 225])
def test_a_sample_is_answered_as_the_card_says(
    profile: str, card: dict[str, Any], length: int, tokenizer: Tokenizer
) -> None:
    unsure = {name for name, lengths in card["wrong_or_unsure"].items() if length in lengths}
    some = [replace(family, items=family.items[::SAMPLE_EVERY]) for family in load_bank()]
    sample = [case for case in cases(tokenizer, some, length) if case.name not in unsure]
    assert len(sample) >= 30
    outcomes = run(Model(weights.load(profile), Experts()), sample)
    assert [o.name for o in outcomes if not o.first or o.probability < SURE] == []


def test_the_first_threads_prompt_is_answered_paris(profile: str, tokenizer: Tokenizer) -> None:
    capital = next(family for family in load_bank() if family.name == "capital")
    france = [item for item in capital.items if item["id"] == "france"]
    (case,) = cases(tokenizer, [replace(capital, items=tuple(france))], 193)
    assert tokenizer.decode(case.answer[:1]) == "Paris"
    (outcome,) = run(Model(weights.load(profile), Experts()), [case])
    assert outcome.exact
    assert outcome.probability > SURE
