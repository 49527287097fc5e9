"""What one embedded server is asked to be: profile, fault, guards, cache and limits."""

from dataclasses import dataclass
from math import lcm

from .faults.kinds import SPLIT_K
from .faults.spec import Fault, parse

GUARDS = ("splitk", "retreat", "unsplit")
STRATEGIES = ("extra_buffer", "no_buffer")
NAN_JSON = ("null", "500", "clamped")
SPECULATIVE = ("NEXTN",)  # a draft head of the model's own, one token a step

CHUNK = 64  # tokens per gated-delta-rule chunk: recurrent state exists only at its multiples
TRACK_INTERVAL = 256  # decoded tokens between two recurrent states kept, before rounding up to the grid


@dataclass(frozen=True)
class Settings:
    """One server's settings; lengths and sizes in tokens, `cu` in virtual compute units, `noise` relative.

    Raises ValueError, with the value, for anything the engine cannot be.
    """

    profile: str = "quiz-state"
    fault: str = "none"
    guard: tuple[str, ...] = ()
    strategy: str = "extra_buffer"
    cu: int = 16
    noise: float = 0.0
    seed: int = 0
    page_size: int = CHUNK
    max_cache_tokens: int = 65536
    max_states: int = 128
    nan_json: str = "null"
    enable_cache_report: bool = True
    max_running_requests: int = 64
    context_length: int = 8192
    chunked_prefill_size: int | None = None  # tokens of one prefill forward, None for any number
    speculative: str | None = None
    speculative_num_steps: int = 3
    deterministic: bool = False

    def __post_init__(self) -> None:
        parse(self.fault)
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("nan_json", self.nan_json, NAN_JSON)
        for name in self.guard:
            _one_of("guard", name, GUARDS)
        if self.chunked_prefill_size is not None and self.chunked_prefill_size < 1:
            raise ValueError(f"chunked_prefill_size must be at least 1, got {self.chunked_prefill_size}.")
        if self.speculative is not None:
            _one_of("speculative", self.speculative, SPECULATIVE)
            if self.deterministic:
                raise ValueError(
                    "deterministic and speculative exclude each other: a verification computes several "
                    "tokens in one forward."
                )
        sizes = ("cu", "page_size", "max_cache_tokens", "max_states", "max_running_requests")
        for name in (*sizes, "speculative_num_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0.0 <= self.noise < 1.0:
            raise ValueError(f"noise must be in [0, 1), got {self.noise}.")
        if self.strategy == "no_buffer" and self.page_size != 1:
            raise ValueError(f"page_size must be 1 with strategy no_buffer, got {self.page_size}.")
        if CHUNK % self.page_size and self.page_size % CHUNK:
            raise ValueError(f"page_size must divide {CHUNK} or be a multiple of it, got {self.page_size}.")

    @property
    def grid(self) -> int:
        """Tokens between two positions a prefill may keep a recurrent state at."""
        return lcm(CHUNK, self.page_size)

    @property
    def decode_grid(self) -> int:
        """Tokens between two positions decoding may keep a recurrent state at."""
        return lcm(self.grid, TRACK_INTERVAL)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that `fault` names."""
        return parse(self.fault)

    @property
    def expert_fault(self) -> str:
        """The fault of the split product inside the MoE, or `none`."""
        return next((fault.name for fault in self.faults if fault.name in SPLIT_K), "none")

    @property
    def nan_reply(self) -> str:
        """What a NaN in a reply becomes: a fault may say so, else `nan_json` does."""
        surfaces = (fault.name.removeprefix("nan-") for fault in self.faults)
        return next((name for name in surfaces if name in NAN_JSON), self.nan_json)

    @property
    def prefill_cut(self) -> int | None:
        """The grid at whose last point prefills are cut in two, None where they are not."""
        return self.grid if any(fault.name == "split-cold" for fault in self.faults) else None

    @property
    def expert_guard(self) -> str:
        """The guard that acts inside the MoE: `unsplit`, `splitk` or `none`."""
        return next((name for name in ("unsplit", "splitk") if name in self.guard), "none")

    @property
    def retreat(self) -> bool:
        """Whether a cache hit must leave at least two tokens to compute."""
        return "retreat" in self.guard


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} must be one of {', '.join(allowed)}, got {value!r}.")
