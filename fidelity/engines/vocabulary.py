"""How many token ids the server has: an id past its vocabulary can kill it, so none may ever be sent."""

import re

import httpx

from fidelity.engines import json_reader
from fidelity.engines.facts import ServerFacts
from fidelity.engines.versions import at_least

ASKABLE = (0, 5, 21)
"""The first release measured to refuse an impossible `token_ids_logprob` before any forward."""

_IMPOSSIBLE = 1_000_000_000
_RANGE = re.compile(r"valid range is \[0, (\d+)\)")


def can_be_asked(facts: ServerFacts) -> bool:
    """Does this release refuse an impossible id whose logprob is wanted, with nothing computed?"""
    return facts.engine == "sglang" and at_least(facts.version, ASKABLE)


def ask(client: httpx.Client) -> int | None:
    """The vocabulary's size from the refusal itself; None where the server says something else.

    Only where `can_be_asked`. The id is never an input: it is one whose logprob is asked for.
    """
    body = {
        "input_ids": [0],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "token_ids_logprob": [_IMPOSSIBLE],
    }
    try:
        response = client.post("/generate", json=body)
        data = json_reader.parse(response.text)
    except (httpx.TransportError, ValueError):
        return None
    found = _RANGE.search(json_reader.error_message(data, response.text))
    return int(found[1]) if response.status_code == 400 and found else None
