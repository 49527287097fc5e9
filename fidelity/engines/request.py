"""One request in the words that all engines share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOP_K = 20


@dataclass(frozen=True)
class Request:
    """Token ids to continue. `namespace` isolates the prefix cache; `ask` are ids whose logprobs are wanted
    too. With `text`, that is sent in place of the ids, where one of them might be unknown to the server. With
    `score_from`, the prompt's own tokens are scored by a clean prefill (nothing of it is taken from the
    cache) and those from this position on are kept, `top_k` for each; beside new tokens they are kept without
    their top, and the prefill is clean in a fresh namespace alone. With `stream`, the answer comes token by
    token and without logprobs, to be timed. With `chat` (model, messages, tools), that is sent to the
    OpenAI chat endpoint in place of the ids, which are what its template makes of it. `fresh`: nothing was
    sent in the namespace before, for engines that know no namespaces but can be told to leave the cache
    alone."""

    input_ids: Sequence[int]
    namespace: str
    max_new_tokens: int = 1
    ask: Sequence[int] = ()
    top_k: int = TOP_K
    dp_rank: int | None = None
    dp_key: str = "routed_dp_rank"
    text: str | None = None
    temperature: float = 0.0
    ignore_eos: bool = False
    score_from: int | None = None
    stream: bool = False
    chat: Mapping[str, Any] | None = None
    fresh: bool = True
