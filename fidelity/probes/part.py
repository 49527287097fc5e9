"""What a probe will send, said before it is sent."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Requests to /generate of one kind, and their tokens in all. A row of a list-valued request counts as a
    request."""

    what: str
    requests: int
    prompt_tokens: int
    new_tokens: int
