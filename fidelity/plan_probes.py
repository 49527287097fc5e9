"""The part of a plan that says which prompts are used and how each probe samples. Lengths and tails are in
tokens."""

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

ProbeName = Literal[
    "resend",
    "decode",
    "batch",
    "draft",
    "impact",
    "tasks",
    "speed",
    "equivalence",
    "sweep",
    "checkpoint",
    "reference",
]

ALL_PROBES: tuple[ProbeName, ...] = tuple(name for name in get_args(ProbeName) if name != "reference")
"""Those to choose from; `reference` comes with a plan's reference, after the others."""

DEFAULT_PROBES: tuple[ProbeName, ...] = ("resend", "decode")
"""What a run without a choice of its own sends; its decode is a short one."""

PATHS: dict[ProbeName, str] = {
    "resend": "cached re-sends",
    "decode": "single-request decode",
    "batch": "batches",
    "draft": "speculative decoding",
}
"""The probes that stand for a path of the server."""

SHORT_DECODE = (6, 64)
LONG_DECODE = (8, 2048)
"""Prompts, and tokens: of each prompt in the short one, of all of them in the long one."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompts(Section):
    """`count` distinct prompts, `include`d ones first, the rest spread over the families."""

    count: int = Field(30, ge=1)
    include: tuple[str, ...] = ("capital/france",)
    families: tuple[str, ...] = ()
    folder: Path | None = None
    thinking: bool = False
    tokenizer: str | None = None
    """A local folder or hub id; by default the server's own /tokenize is used."""


class Resend(Section):
    """Cold and cached sends. Tails and lengths are in tokens; None is chosen from what the server reports."""

    hits: int = Field(2, ge=1)
    positions: tuple[int, ...] | None = None
    suspects: tuple[int, ...] | None = None
    controls: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    attempts: int = Field(3, ge=1)
    """Tries at one (prompt, length) when a request of it fails."""
    warmup_sends: int = Field(16, ge=0)
    warmup_tokens: int = Field(256, ge=0)


class Decode(Section):
    """Single-request decode, re-scored by a clean prefill. `tokens` over all prompts, at temperature 0."""

    tokens: int | None = Field(None, ge=1)
    prompts: int | None = Field(None, ge=1)
    sampling: bool = True
    """A second leg at temperature 1 for an estimate of the KL divergence, after a clean first one; never in
    the default run's short decode, and on an attached server only with target.allow_sampling."""


class Batch(Section):
    """The same prompts as one request of several rows, every row re-scored."""

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 16)
    rounds: int = Field(6, ge=1)
    """Times that each size is sent; sizes of more rows need fewer: `rounds` counts rows at least."""
    tokens: int = Field(8, ge=1)
    """New tokens of each row."""
    ragged: int = Field(8, ge=0)
    """Rows of the ragged batch that fills the cache before each is hit alone; 0 leaves it out."""


class Draft(Section):
    """Speculative decoding: how much of the draft is accepted, and what that costs."""

    prompts: int = Field(8, ge=1)
    tokens: int = Field(64, ge=2)
    """New tokens of each prompt."""


class Impact(Section):
    """Request patterns of users, cold and re-sent, at the first suspect length."""

    prompts: int = Field(12, ge=1)
    """Prompts of each pattern."""
    tokens: int = Field(32, ge=1)
    """New tokens of a long answer."""


class Tasks(Section):
    """Graded questions, each asked cold and as a cache hit."""

    files: tuple[Path, ...] = ()
    """JSONL files with `question`, `answer` and perhaps `choices`; none is the shipped set."""
    limit: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    """New tokens of an answer; None is 16 for the shipped set and 512 for others."""


class Speed(Section):
    """Times of cold sends, hits and decode. Never decides fidelity."""

    prompts: int = Field(6, ge=1)
    """Prompts of one block; each arm runs two blocks."""
    tokens: int = Field(32, ge=2)
    """New tokens of each timed answer."""
    concurrency: tuple[PositiveInt, ...] = (4,)
    max_slowdown: float | None = Field(None, gt=0)
    """Share by which a guarded arm may be slower than the first arm; None shows it only."""


class Equivalence(Section):
    """The same sends on restarted servers: the arms against each other and each against itself."""

    prompts: int = Field(10, ge=2)
    lengths: tuple[PositiveInt, ...] = Field((193, 385), min_length=1)
    """Tokens of each prompt, computed cold: a path that a guard does not touch."""


class Sweep(Section):
    """Many tails and lengths with few prompts each, shown as a map."""

    prompts: int = Field(1, ge=1)
    multiples: tuple[PositiveInt, ...] = Field((1, 2, 3, 5, 11, 33), min_length=1)
    """Positions to resume from, in units of the grid; the least is mapped at every tail."""
    beyond: tuple[PositiveInt, ...] = (1, 2, 33)
    """Tails past the grid, in tokens beyond it."""


class Checkpoint(Section):
    """Prefixes of one prompt that all resume from one stored checkpoint."""

    prompts: int = Field(6, ge=1)
