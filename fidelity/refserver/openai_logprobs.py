"""Logprobs in the two shapes of the OpenAI API; neither holds token ids."""

from typing import Any

from .logprobs import Entry
from .sequence import Sequence
from .text import Text


def chat_logprobs(text: Text, sequence: Sequence, start: int, end: int) -> dict[str, Any] | None:
    """Output tokens start to end as `choices[].logprobs` of a chat, None when not asked for."""
    if sequence.request.wanted is None:
        return None
    tops: list[list[Entry] | None] = sequence.output.top or [None] * end
    return {
        "content": [
            _chat_entry(text, token)
            | {"top_logprobs": [_chat_entry(text, (logprob, other)) for logprob, other in top or []]}
            for token, top in zip(sequence.output.tokens[start:end], tops[start:end], strict=True)
        ]
    }


def completion_logprobs(
    text: Text, sequence: Sequence, start: int, end: int, echo: bool
) -> dict[str, Any] | None:
    """Output tokens start to end as a completion's `logprobs`, after the prompt's own with `echo`."""
    if sequence.request.wanted is None:
        return None
    tokens = list(sequence.output.tokens[start:end])
    tops = list(sequence.output.top[start:end])
    if echo:
        tokens = [*sequence.prompt.tokens, *tokens]
        tops = [*sequence.prompt.top, *tops]
    return {
        "text_offset": [-1] * len(tokens),
        "token_logprobs": [logprob for logprob, _ in tokens],
        "tokens": [text.token(token) for _, token in tokens],
        "top_logprobs": [
            None if top is None else {text.token(token): logprob for logprob, token in top} for top in tops
        ],
    }


def _chat_entry(text: Text, entry: tuple[float | None, int]) -> dict[str, Any]:
    logprob, token = entry
    return {"token": text.token(token), "bytes": text.token_bytes(token), "logprob": logprob}
