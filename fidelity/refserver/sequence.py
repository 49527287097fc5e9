"""One request while the engine runs it, and what has come out so far."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .layers import Array
from .logprobs import Quoted, Row, log_softmax, quote, quote_prompt
from .model import Recurrent, Segment, State
from .requests import Request
from .sampling import choose

Decode = Callable[[Tokens[int]], str]


@dataclass(eq=False)
class Sequence:
    """A request in the engine. `notify` is called on the engine's thread with the tokens so far.

    The lists only ever grow, so another thread may read the first n entries while more are added.
    `finish` has the keys of a `finish_reason`; it is set before the last notification.
    """

    request: Request
    rng: np.random.Generator
    notify: Callable[["Sequence", int], None]
    state: State | None = None
    cached_tokens: int = 0
    reported_tokens: int | None = 0  # cached_tokens as a reply states it
    quoted: Callable[[Row], Row] | None = None  # from a row of logprobs to the one a reply quotes
    output_ids: list[int] = field(default_factory=list)
    prompt: Quoted = field(default_factory=Quoted)
    output: Quoted = field(default_factory=Quoted)
    finish: dict[str, Any] | None = None
    cancelled: bool = False
    tracked: tuple[int, Recurrent] | None = None  # last decode checkpoint: position in tokens, state
    hidden: Array | None = None  # the last hidden state that chose the last token: what a draft starts from
    accepted: list[int] = field(default_factory=list)  # drafts kept, one entry a verification
    proposed: int = 0  # drafts verified
    arrived: float = field(default_factory=time.perf_counter)
    ended: float = 0.0

    def prefilled(self, logits: Row, decode: Decode, eos: frozenset[int]) -> None:
        """Take the logits of the extend: [m, vocab], the last row for the next token.

        With prompt logprobs, the rows start at `request.prompt_from`.
        """
        request = self.request
        if request.wanted is not None and request.prompt_from is not None:
            quote_prompt(self.prompt, logits, request.wanted, request.ids[request.prompt_from :].tolist())
        if request.sampling.max_new_tokens > 0:
            self.advance(logits[-1], decode, eos)
            return
        if request.wanted is not None:
            quote(self.output, log_softmax(logits[-1]), request.wanted, None)
        self.end({"type": "length", "length": 0})

    def advance(self, logits: Row, decode: Decode, eos: frozenset[int]) -> None:
        """Choose the next token from logits [vocab], quote it, and see whether it was the last."""
        token, logprobs = choose(logits, self.request.sampling, self.rng)
        if self.request.wanted is not None:
            shown = logprobs if self.quoted is None else self.quoted(logprobs)
            quote(self.output, shown, self.request.wanted, token)
        self.output_ids.append(token)
        finish = self._finish_reason(decode, eos)
        if finish is not None:
            self.end(finish)

    def step(self) -> Segment:
        """What decoding computes next: the last token, which the state does not hold yet."""
        if self.state is None:
            raise ValueError("a running sequence must have a state")
        return Segment(
            ids=np.asarray(self.output_ids[-1:], np.int64),
            state=self.state,
            decode=True,
            prompt=self.request.ids,
            cached=self.cached_tokens,
        )

    def end(self, finish: dict[str, Any]) -> None:
        """Mark as finished for this reason."""
        self.ended = time.perf_counter()
        self.finish = finish

    @property
    def failure(self) -> str | None:
        """Why the engine gave the request up, None where it did not."""
        finish = self.finish or {}
        return str(finish["message"]) if finish.get("type") == "abort" else None

    def _finish_reason(self, decode: Decode, eos: frozenset[int]) -> dict[str, Any] | None:
        sampling = self.request.sampling
        if sampling.stop:
            text = decode(self.output_ids)
            matched = next((stop for stop in sampling.stop if stop in text), None)
            if matched is not None:
                return {"type": "stop", "matched": matched}
        token = self.output_ids[-1]
        if not sampling.ignore_eos and (token in eos or token in sampling.stop_token_ids):
            return {"type": "stop", "matched": token}
        if len(self.output_ids) >= sampling.max_new_tokens:
            return {"type": "length", "length": sampling.max_new_tokens}
        return None
