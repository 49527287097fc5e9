"""Chat messages to the token ids that a server would see: by a local tokenizer, or by asking the server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fidelity.errors import FidelityError, PromptError, UnreachableError

Messages = list[dict[str, str]]
Tools = Sequence[Mapping[str, Any]]
"""Descriptions of tools, as the OpenAI API takes them."""
Post = Callable[[str, dict[str, Any]], dict[str, Any]]

OTHER_WAY = "name a local tokenizer instead: a folder with tokenizer.json and a chat template, or a hub id"


class ChatTokenizer(Protocol):
    """What fitting needs. An instance must be hashable (any plain class is) and always give the same ids."""

    @property
    def source(self) -> str:
        """What it is, for the record of the run."""

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids, where known."""

    def encode(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Ids of the whole templated conversation up to where the answer starts, `tools` described in it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""


class ServerTokenizer:
    """The server's own tokenizer and template, by POST /tokenize (sglang from 0.5.13, vLLM).

    `post(path, body)` sends JSON and returns the JSON object answered. It raises UnreachableError when the
    server does not answer, and another FidelityError when it refuses.
    """

    def __init__(self, post: Post, thinking: bool, vocab_size: int | None = None) -> None:
        self._post = post
        self._thinking = thinking
        self.vocab_size = vocab_size
        self.source = f"server /tokenize, {mode(thinking)}"

    def encode(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Raises PromptError when the server has no /tokenize for messages: a caller may then fall back."""
        body: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": True,
            "chat_template_kwargs": {"enable_thinking": self._thinking},
        }
        if tools:
            body["tools"] = list(tools)
        answer = self._ask("/tokenize", body)
        ids = answer.get("tokens")
        if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
            raise PromptError(
                "the server's /tokenize does not take chat messages: no token ids came", OTHER_WAY
            )
        if answer.get("count", len(ids)) != len(ids):
            raise PromptError(
                f"the server's /tokenize contradicts itself: {len(ids)} ids, count {answer['count']}",
                OTHER_WAY,
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Raises PromptError when the server has no /detokenize."""
        answer = self._ask("/detokenize", {"tokens": list(ids), "skip_special_tokens": False})
        text = answer.get("text", answer.get("prompt"))
        if not isinstance(text, str):
            raise PromptError("the server's /detokenize gave no text", OTHER_WAY)
        return text

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._post(path, body)
        except UnreachableError:
            raise
        except FidelityError as error:
            raise PromptError(f"the server has no usable {path}: {error}", OTHER_WAY) from error


def check_ids(ids: Sequence[int], vocab_size: int | None) -> None:
    """Raise PromptError unless every id is in the vocabulary: one id past it can kill a server.

    With `vocab_size` None only the sign can be checked.
    """
    bad = [token for token in ids if token < 0 or (vocab_size is not None and token >= vocab_size)]
    if bad:
        raise PromptError(
            f"{len(bad)} of {len(ids)} token ids are outside the vocabulary of {vocab_size}: {bad[0]} first",
            "the tokenizer belongs to another model: name the one that this server loads",
        )


def mode(thinking: bool) -> str:
    """For the `source` of a tokenizer."""
    return f"thinking {'on' if thinking else 'off'}"
