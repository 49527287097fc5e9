"""A local sglang server: whether this machine has one, and the ways on when it has not."""

import importlib.util

from fidelity.errors import StartError
from fidelity.plan import Target

WAYS_ON = (
    "install sglang in this environment, attach to a server that runs with --url http://HOST:PORT, "
    "or see the whole job without a GPU with --model embedded"
)


def require_sglang(target: Target) -> None:
    """Raises StartError with the ways on where sglang is not installed."""
    if importlib.util.find_spec("sglang") is None:
        raise StartError(f"cannot start a server for '{target.model}': sglang is not installed here", WAYS_ON)
