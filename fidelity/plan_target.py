"""The part of a plan that says which server is tested and how it is reached."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from fidelity.errors import PlanError, did_you_mean
from fidelity.gpus import gpu
from fidelity.plan_probes import Section
from fidelity.refserver.faults import KINDS
from fidelity.refserver.faults import parse as parse_faults

Strategy = Literal["extra_buffer", "no_buffer"]


class Target(Section):
    """The server under test. `fault`, `cu`, `noise`, `profile`, `strategy`, `speculative` and `deterministic`
    are the embedded engine's."""

    kind: Literal["embedded", "attach", "process", "container"] = "embedded"
    model: str = "embedded"
    engine: Literal["auto", "sglang", "vllm", "llamacpp", "openai"] = "auto"
    """The API of an attached server; `auto` recognises it. Servers that are started here are sglang's."""
    url: str | None = None
    profile: str = "quiz-state"
    fault: str = "split-k-nan"
    """Faults by name, with keys where wanted: `swapped-row:rate=0.2,hit-jitter`."""
    cu: int = Field(16, ge=1)
    noise: float = Field(0.0, ge=0)
    strategy: Strategy = "extra_buffer"
    speculative: bool = False
    deterministic: bool = False
    page_size: int | None = Field(None, ge=1)
    """Tokens; by default 64, and 1 under no_buffer, as sglang resolves it."""
    timeout: float = Field(120.0, gt=0)
    """Seconds one request may take."""
    start_timeout: float = Field(3600.0, gt=0)
    """Seconds until a started sglang server must be ready; a first start can compile kernels."""
    python: str | None = None
    """The interpreter of the environment that has sglang; by default this one."""
    image: str | None = None
    runtime: Literal["docker", "podman", "nerdctl"] | None = None
    flags: tuple[str, ...] = ()
    """Flags of the user's own for the server that is started."""
    gpu: str | None = None
    """The GPU of a real server, for its fault region; never guessed."""
    compute_units: int | None = Field(None, ge=1)
    """What aiter sees of that GPU, where a partition mode leaves fewer than all."""
    header_file: Path | None = None
    """Lines `Name: value` sent with every request to an attached server, read from there each time."""
    ca_file: Path | None = None
    """Certificate authorities (PEM) to trust for an attached server, in place of this machine's."""
    served_model: str | None = None
    """The name under which an attached server must serve its model."""
    rate: float | None = Field(None, gt=0)
    """Requests of any kind that an attached server may get, per second."""
    replicas: int = Field(1, ge=1)
    """How many servers answer behind the address of an attached one."""
    replica_header: str | None = None
    """The header of its answers that tells which; by default any of the names in use."""
    allow_load: bool = False
    """May an attached server get more than one request at once?"""
    allow_sampling: bool = False
    """May an attached server be asked to sample at temperature 1? A NaN there kills some servers."""
    assume_idle: bool = False
    """Take for granted that nobody else uses an attached server, where it does not say."""

    @property
    def api(self) -> str:
        """The engine to speak to the server with, or `auto`."""
        return self.engine if self.kind == "attach" else "sglang"

    @property
    def shared(self) -> bool:
        """May others use the server, so that each send must be shown to have been alone?"""
        return self.kind == "attach" and not self.assume_idle

    @field_validator("fault")
    @classmethod
    def _known_fault(cls, value: str) -> str:
        for name in (part.split(":")[0].strip() for part in value.split(",")):
            if name not in KINDS and name != "none":
                told = PlanError(f"there is no fault '{name}'", did_you_mean(name, KINDS))
                raise ValueError(told.message) from told
        parse_faults(value)
        return value

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, value: str | None) -> str | None:
        try:
            return None if value is None else gpu(value).name
        except PlanError as exc:
            raise ValueError(exc.message) from exc
