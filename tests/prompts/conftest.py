"""A family to experiment with, and the embedded engine's tokenizer as a folder that transformers loads."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import fidelity.refserver.chat
from fidelity.prompts.families import Family
from fidelity.prompts.loading import load_families
from fidelity.prompts.local import LocalTokenizer
from fidelity.prompts.tokenizers import ChatTokenizer, Messages


class Counting:
    """A tokenizer that counts how often it was asked."""

    def __init__(self, inner: ChatTokenizer) -> None:
        self.inner = inner
        self.calls = 0
        self.source = inner.source
        self.vocab_size = inner.vocab_size

    def encode(self, messages: Messages) -> list[int]:
        self.calls += 1
        return self.inner.encode(messages)

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(ids)


@pytest.fixture
def counting() -> type[Counting]:
    return Counting


@pytest.fixture(scope="session")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded-tokenizer")
    profiles = Path(fidelity.refserver.chat.__file__).parent / "profiles"
    shutil.copy(profiles / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(fidelity.refserver.chat.TEMPLATE, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def embedded(embedded_folder: Path) -> LocalTokenizer:
    return LocalTokenizer(embedded_folder, thinking=False)


@pytest.fixture(scope="session")
def families() -> list[Family]:
    """The shipped ones."""
    return load_families()


@pytest.fixture
def quiz() -> Family:
    """Two frames, two items; not one of the shipped families."""
    return Family.model_validate(
        {
            "family": "quiz",
            "kind": "fact",
            "about": "colours",
            "frames": [
                {
                    "system": "Answer with one word.",
                    "user": "I have read the items {filler}. Now tell me please: {question} One word.",
                },
                {"user": "{filler}. {question}"},
            ],
            "items": [
                {"id": "sky", "question": "what colour is the sky?", "answer": "blue"},
                {"id": "snow", "question": "what colour is snow?", "answer": "white"},
            ],
        }
    )
