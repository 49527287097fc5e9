"""Embedded servers as somebody else's: started beside the command, which is given their addresses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fidelity.plan import Arm, Target
from fidelity.servers.embedded import embedded


@contextmanager
def served(folder: Path, guard: str = "none", **options: object) -> Iterator[str]:
    """The address of one; `options` are the target's."""
    target = Target.model_validate({"profile": "random", "fault": "none", **options})
    log = folder / f"server-{target.fault}-{guard}.log"
    with embedded(target, Arm(name="here", guard=guard), log, seed=0) as server:
        yield server.url
