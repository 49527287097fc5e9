"""The serving APIs by name, and which of them a server speaks: found out from its own endpoints."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import httpx

from fidelity.engines import llamacpp, openai, sglang, vllm
from fidelity.engines.facts import EMBEDDED, ServerFacts
from fidelity.engines.request import Request
from fidelity.engines.solitude import Load
from fidelity.errors import NotWhatWasAskedError
from fidelity.observations import Answer
from fidelity.prompts.tokenizers import ChatTokenizer, Post

AUTO = "auto"


class Engine(Protocol):
    """The client side of one serving API; each is a module of this package."""

    def recognise(self, client: httpx.Client) -> str | None:
        """What shows that the server speaks this API, in words, by GETs that compute nothing; None where
        nothing does. Raises UnreachableError, NotWhatWasAskedError."""

    def facts(self, client: httpx.Client) -> ServerFacts:
        """What the server says of itself. Raises UnreachableError, NotWhatWasAskedError."""

    def tokenizer(self, client: httpx.Client, post: Post, thinking: bool) -> ChatTokenizer:
        """The server's own tokenizer and chat template."""

    def generate(self, client: httpx.Client, request: Request, timeout: float | None = None) -> Answer:
        """Send one request and read the whole answer. Never retries, never raises on a bad answer."""

    def generate_batch(
        self, client: httpx.Client, requests: Sequence[Request], timeout: float | None = None
    ) -> list[Answer]:
        """Send several that the server should run together."""

    def call(self, requests: Sequence[Request], *, single: bool) -> tuple[str, dict[str, Any]]:
        """The path and the JSON body by which these are sent."""

    def answers(self, client: httpx.Client) -> bool:
        """Does the server still answer, by an endpoint that computes nothing?"""

    def look(self, client: httpx.Client) -> Load | None:
        """The load of the server; None where it does not tell."""


ENGINES: dict[str, Engine] = {"sglang": sglang, "vllm": vllm, "llamacpp": llamacpp, "openai": openai}
"""In the order in which they are tried: what promises most first."""


def engine_of(facts: ServerFacts) -> Engine:
    """The engine that these facts are of."""
    return named(facts.engine)


def named(engine: str) -> Engine:
    """The engine by the name that facts have for it."""
    return ENGINES["sglang" if engine == EMBEDDED else engine]


def meet(client: httpx.Client, engine: str = AUTO) -> ServerFacts:
    """The facts of a server whose API is named, or with `auto` recognised; a note then says by what. Raises
    UnreachableError, NotWhatWasAskedError."""
    if engine != AUTO:
        return ENGINES[engine].facts(client)
    for name, candidate in ENGINES.items():
        shown = candidate.recognise(client)
        if shown is not None:
            facts = candidate.facts(client)
            if name == "sglang":
                return facts
            note = f"taken for {name}, by {shown}; --engine names another"
            return replace(facts, notes=(note, *facts.notes))
    raise NotWhatWasAskedError(
        f"{client.base_url} answers, but as none of {', '.join(ENGINES)}",
        "give the address of the server itself, not of a page in front of it; --engine names its API",
    )
