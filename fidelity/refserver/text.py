"""The tokenizer as the server uses it: text to ids and back, one token's text and bytes, chat prompts."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .chat import render
from .errors import BadRequestError

ENDS = ("<|im_end|>", "<|endoftext|>")  # tokens that end an answer


class Text:
    """A `tokenizer.json` loaded; raises FileNotFoundError when there is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"no tokenizer at {path}")
        self._tokenizer: Any = Tokenizer.from_file(str(path))
        special = self._tokenizer.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in special.items()}
        self.eos = frozenset(token for token, content in self._special.items() if content in ENDS)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written out in it become themselves."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are not UTF-8 come out as replacement characters."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token(self, token: int) -> str:
        """One token's text, special or not."""
        return self.decode([token], skip_special_tokens=False)

    def token_bytes(self, token: int) -> list[int]:
        """One token's bytes, also where they are only part of a character."""
        if token in self._special:
            return list(self._special[token].encode())
        piece = self._tokenizer.id_to_token(token) or ""
        return [_byte_of()[character] for character in piece]

    def chat(self, body: Mapping[str, Any]) -> list[int]:
        """Prompt ids of a body with `messages`, `chat_template_kwargs` and `add_generation_prompt`.

        Raises BadRequestError for messages the template cannot take.
        """
        options = body.get("chat_template_kwargs") or {}
        messages = body.get("messages")
        if not isinstance(options, dict):
            raise BadRequestError("chat_template_kwargs must be an object.")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("messages must be a non-empty list.")
        plain = [_message(message) for message in messages]
        thinking = options.get("enable_thinking")
        prompt = render(
            plain,
            enable_thinking=thinking if isinstance(thinking, bool) else None,
            add_generation_prompt=body.get("add_generation_prompt", True) is not False,
        )
        return self.encode(prompt)


def _message(message: object) -> dict[str, str]:
    """A message with its content as one string; parts of type text are joined."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequestError("each message must be an object with a role and a content.")
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if all(isinstance(part, str) for part in parts):
            content = "".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise BadRequestError("each message's content must be a string or a list of text parts.")
    return {"role": message["role"], "content": content}


@lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    """The byte each character of the byte-level alphabet stands for.

    Printable Latin-1 bytes stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
