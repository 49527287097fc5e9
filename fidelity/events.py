"""What happens during a run, as values. The runner yields them and knows no screen."""

from dataclasses import dataclass

from fidelity.compare import Agreement
from fidelity.engines.facts import ServerFacts
from fidelity.observations import Observation
from fidelity.probes.cells import Cell


@dataclass(frozen=True)
class ServerStarting:
    arm: str
    what: str


@dataclass(frozen=True)
class ServerLog:
    """The newest line of a server's log while it starts."""

    arm: str
    line: str


@dataclass(frozen=True)
class ServerReady:
    """`requests` is how many sends this arm will take if none fails; `seconds` the time to get ready."""

    arm: str
    facts: ServerFacts
    cells: tuple[Cell, ...]
    requests: int
    seconds: float


@dataclass(frozen=True)
class Warning:
    """A condition that changes what the run can prove, with what to do about it."""

    arm: str
    message: str


@dataclass(frozen=True)
class Sent:
    observation: Observation


@dataclass(frozen=True)
class Skipped:
    """Sends of this arm that an earlier part of a resumed run already recorded."""

    arm: str
    requests: int


@dataclass(frozen=True)
class Corruption:
    """A hit that is corrupt against its cold send."""

    cold: Observation
    hit: Observation
    agreement: Agreement


@dataclass(frozen=True)
class ArmDone:
    arm: str
    seconds: float


@dataclass(frozen=True)
class RunEnded:
    """`status` as in the manifest; `error` is a sentence when the run could not go on."""

    status: str
    error: str | None = None
    hint: str | None = None


Event = ServerStarting | ServerLog | ServerReady | Warning | Sent | Skipped | Corruption | ArmDone | RunEnded
