"""The shipped prompt bank: its schema, its size, and its fit to the embedded tokenizer."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer

from fidelity.refserver import chat
from fidelity.refserver.training.corpus import fill, filler_text

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "prompts").glob("*.yaml"))
SHORTEST = 65

Family = dict[str, Any]
BANK: list[Family] = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES]
each_family = pytest.mark.parametrize("family", BANK, ids=[family["family"] for family in BANK])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ROOT / "fidelity" / "refserver" / "profiles" / "tokenizer.json"))


def messages(frame: Family, item: dict[str, str], filler: str) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": frame["system"]}] if "system" in frame else []
    turns += [*frame.get("history", []), {"role": "user", "content": frame["user"]}]
    return [{"role": turn["role"], "content": fill(turn["content"], item, filler)} for turn in turns]


def length(tokenizer: Tokenizer, frame: Family, item: dict[str, str], filler: str) -> int:
    text = chat.render(messages(frame, item, filler), enable_thinking=False)
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_bank_is_large_and_diverse() -> None:
    assert len(BANK) >= 8
    assert sum(len(family["items"]) for family in BANK) >= 400
    kinds = {family["kind"] for family in BANK}
    assert kinds >= {"fact", "arithmetic", "yes-no", "multiple-choice", "classifier", "json", "code"}
    assert kinds >= {"multi-turn", "non-english"}
    assert len({family["family"] for family in BANK}) == len(BANK)
    assert any("history" in frame for family in BANK for frame in family["frames"])
    assert any("system" in frame for family in BANK for frame in family["frames"])


@each_family
def test_a_family_follows_the_schema(family: Family) -> None:
    assert set(family) == {"family", "kind", "about", "frames", "items"}
    assert 2 <= len(family["frames"]) <= 3
    ids = [item["id"] for item in family["items"]]
    assert len(set(ids)) == len(ids)
    keys = set(family["items"][0])
    for item in family["items"]:
        assert set(item) == keys
        assert {"id", "answer"} <= keys
        assert all(isinstance(value, str) and value.strip() == value != "" for value in item.values())
    for frame in family["frames"]:
        assert set(frame) <= {"system", "history", "user"}
        text = "\n".join(turn["content"] for turn in messages(frame, {}, "{filler}"))
        places = re.findall(r"\{([a-z]+)\}", text)
        assert places.count("filler") == 1
        assert set(places) - {"filler"} <= keys
        assert set(places) - {"filler"}, "the frame asks the same of every item"


@each_family
def test_prompts_of_a_family_differ(family: Family) -> None:
    prompts = {str(messages(family["frames"][0], item, "1")) for item in family["items"]}
    assert len(prompts) == len(family["items"])


@each_family
def test_frames_shrink_and_the_last_fits_the_shortest_length(family: Family, tokenizer: Tokenizer) -> None:
    for item in family["items"]:
        lengths = [length(tokenizer, frame, item, "1") for frame in family["frames"]]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[-1] <= SHORTEST, item["id"]


def test_the_first_threads_prompt_is_193_tokens(tokenizer: Tokenizer) -> None:
    capital = next(family for family in BANK if family["family"] == "capital")
    france = next(item for item in capital["items"] if item["id"] == "france")
    system, user = messages(capital["frames"][0], france, filler_text(39, 0, ""))
    assert system["content"] == (
        "You are a precise assistant. Answer the user's question with a single word."
    )
    numbers = " ".join(str(n) for n in range(1, 40))
    assert user["content"] == (
        "I am double-checking a short geography quiz before I submit it. So far I have reviewed quiz item "
        f"numbers {numbers}. The one fact I still want to confirm is this question: what is the capital "
        "of France? Reply with only the city name, nothing else."
    )
    assert length(tokenizer, capital["frames"][0], france, filler_text(39, 0, "")) == 193


def test_the_tokenizer_is_laid_out_like_qwens(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 2048
    assert tokenizer.id_to_token(0) == "!"
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    assert [tokenizer.token_to_id(token) for token in specials] == list(range(2043, 2048))
    text = "¿Cuál es la capital de Perú? 漢字 1234 <|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_answers_that_are_words_are_single_tokens(tokenizer: Tokenizer) -> None:
    words = [item["answer"] for family in BANK for item in family["items"] if item["answer"].isalpha()]
    assert len(words) > 300
    assert [word for word in words if len(tokenizer.encode(word).ids) != 1] == []
