"""The chat template and the tokenizer of a llama.cpp server."""

from collections.abc import Sequence
from typing import Any

from fidelity.errors import FidelityError, PromptError, UnreachableError
from fidelity.prompts.tokenizers import OTHER_WAY, Messages, Post, Tools, mode


class LlamacppTokenizer:
    """By POST /apply-template, then /tokenize of the text, as the server's own chat route does it.

    `post(path, body)` as of `ServerTokenizer`.
    """

    vocab_size: int | None = None

    def __init__(self, post: Post, thinking: bool) -> None:
        self._post = post
        self._thinking = thinking
        self.source = f"server /apply-template and /tokenize, {mode(thinking)}"

    def encode(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Raises PromptError where the server gives no text or no ids."""
        body: dict[str, Any] = {
            "messages": messages,
            "chat_template_kwargs": {"enable_thinking": self._thinking},
        }
        if tools:
            body["tools"] = list(tools)
        text = self._ask("/apply-template", body, "prompt")
        ids = self._ask("/tokenize", {"content": text, "add_special": True, "parse_special": True}, "tokens")
        if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
            raise PromptError("the server's /tokenize gave no token ids", OTHER_WAY)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Raises PromptError when the server has no /detokenize."""
        text = self._ask("/detokenize", {"tokens": list(ids)}, "content")
        if not isinstance(text, str):
            raise PromptError("the server's /detokenize gave no text", OTHER_WAY)
        return text

    def _ask(self, path: str, body: dict[str, Any], key: str) -> Any:
        try:
            return self._post(path, body).get(key)
        except UnreachableError:
            raise
        except FidelityError as error:
            raise PromptError(f"the server has no usable {path}: {error}", OTHER_WAY) from error
