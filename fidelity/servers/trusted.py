"""The second server that a plan holds its arms against: asked as it is, never loaded or changed."""

from collections.abc import Iterator
from contextlib import contextmanager

from fidelity.engines.facts import ServerFacts
from fidelity.engines.registry import meet
from fidelity.errors import UnreachableError
from fidelity.plan import RunPlan, Target
from fidelity.servers.attach import attach
from fidelity.servers.credentials import REFERENCE_KEY_VARIABLE
from fidelity.servers.running import RunningServer


@contextmanager
def reference_server(plan: RunPlan) -> Iterator[tuple[RunningServer, ServerFacts]]:
    """The server at the plan's `reference` and what it says of itself, within the target's limits of time and
    rate. Its API key is read from FIDELITY_REFERENCE_API_KEY. Raises UnreachableError, NotWhatWasAskedError,
    UsageError."""
    own = plan.target
    target = Target(
        kind="attach", url=plan.reference, timeout=own.timeout, ca_file=own.ca_file, rate=own.rate
    )
    with attach(target, REFERENCE_KEY_VARIABLE) as server:
        try:
            yield server, meet(server.client)
        except UnreachableError as exc:
            raise UnreachableError(f"the reference {plan.reference}: {exc.message}", exc.hint) from exc
