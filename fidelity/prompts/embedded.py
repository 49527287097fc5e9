"""The embedded engine's tokenizer, used in this process: fitting without a server and without
transformers."""

from collections.abc import Sequence
from pathlib import Path

import fidelity.refserver
from fidelity.prompts.tokenizers import Messages, Tools


class EmbeddedTokenizer:
    """The 2048-id tokenizer and template that every profile of the embedded engine shares."""

    def __init__(self, thinking: bool) -> None:
        from tokenizers import Tokenizer

        path = Path(fidelity.refserver.__file__).parent / "profiles" / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(path))
        self._thinking = thinking
        self.vocab_size: int | None = self._tokenizer.get_vocab_size()
        self.source = f"embedded tokenizer, thinking {'on' if thinking else 'off'}"

    def encode(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Ids of the whole templated conversation up to where the answer starts. Its template describes no
        tools."""
        from fidelity.refserver.chat import render

        text = render(messages, enable_thinking=self._thinking)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
