"""What a judge says: per cell, per arm, for the run. Plain values, written as `summary.json`."""

from dataclasses import dataclass, field

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
NOT_EXERCISED = "not exercised"
NOT_APPLICABLE = "not applicable"
COULD_NOT_RUN = "could not run"
SHOWN = "shown"


@dataclass(frozen=True)
class Figure:
    """One number that decided something, with its threshold and where that came from."""

    name: str
    value: float
    relation: str
    threshold: float
    source: str
    holds: bool


@dataclass(frozen=True)
class Spread:
    """Of n values: median, 95th percentile and maximum, in nats. A value that is not finite counts as +inf,
    so it is never skipped; `nonfinite` of the n are such."""

    n: int
    nonfinite: int
    median: float
    p95: float
    maximum: float


@dataclass(frozen=True)
class Divergences:
    """Of the sends of a cell against their cold answers, in nats: `kl_lower` is a lower bound of KL(cold ||
    other), [`jsd_lower`, `jsd_upper`] an interval; `p_covered`, `q_covered` are the median masses (0 to 1)
    that the two top-k answers cover."""

    kl_lower: Spread
    jsd_lower: Spread
    jsd_upper: Spread
    p_covered: float
    q_covered: float


@dataclass(frozen=True)
class Example:
    """A corrupt send, readable: what the cold send answered and what the other did. `why` names the rule or
    class."""

    prompt: str
    expected: str
    cold: str
    other: str
    cached_tokens: int | None
    tail: int | None
    why: str
    order: int


@dataclass(frozen=True)
class Reading:
    """One number that was measured and decides nothing by itself; [`low`, `high`] is its 95 % interval where
    there is one."""

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CellVerdict:
    """One condition. `kind`: suspect, control, or floor (cold against cold2).

    prompts: measured; exercised: with at least one send proved to take the path; corrupt: prompts with at
    least one corrupt send. sends and agreement count judged sends (hits, or cold2 for a floor); `agreement`
    has a count
    for same, near-tie, hard flip, off-list, broken, unreadable. rate_lower and rate_upper are one-sided exact
    (Clopper-Pearson) limits of the corrupt-prompt rate. `tails` and `cached` count what the server reported.
    `faces` counts non-finite logprobs by how they showed, out of `values`. `missed` counts the reasons why
    sends did not take the path. `readings` are the probe's own figures, `notes` what else it has to say.
    """

    arm: str
    probe: str
    name: str
    kind: str
    state: str
    reason: str
    length: int = 0
    tail: int | None = None
    why: str = ""
    prompts: int = 0
    exercised: int = 0
    corrupt: int = 0
    sends: int = 0
    corrupt_sends: int = 0
    agreement: dict[str, int] = field(default_factory=dict)
    rate_lower: float = 0.0
    rate_upper: float = 1.0
    divergences: Divergences | None = None
    tails: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    faces: dict[str, int] = field(default_factory=dict)
    values: int = 0
    missed: dict[str, int] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    examples: tuple[Example, ...] = ()
    readings: tuple[Reading, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """One quantity of two arms, `n` pairs; `ratio` is second over first, [`low`, `high`] its 95 %
    interval."""

    name: str
    unit: str
    first: float
    second: float
    ratio: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Two arms on one probe. `state`: as of a cell, or `shown` where it can decide nothing. `headings`: what
    `first` and `second` of the rows are, where not the two arms."""

    probe: str
    name: str
    arms: tuple[str, str]
    state: str
    reason: str
    rows: tuple[Compared, ...] = ()
    figures: tuple[Figure, ...] = ()
    readings: tuple[Reading, ...] = ()
    headings: tuple[str, str] | None = None


@dataclass(frozen=True)
class Hypothesis:
    """What would explain the corrupt cells of an arm; never a finding. `rank` from 1, shared where the cells
    hardly tell two apart; `next` is what would tell it from its neighbour."""

    name: str
    rank: int
    support: tuple[str, ...]
    against: tuple[str, ...]
    next: str


@dataclass(frozen=True)
class ArmVerdict:
    """One server configuration. `skipped`: probes that did not run, and why. `cold_right` of `cold_known`
    cold answers begin as the known answer does. `hypotheses` are ranked, none where nothing is corrupt."""

    name: str
    guard: str
    baseline: bool
    state: str
    reason: str
    server: str
    cells: tuple[CellVerdict, ...]
    warnings: tuple[str, ...]
    replaced: tuple[str, ...]
    unsure: bool
    cold_right: int
    cold_known: int
    requests: int
    failed_requests: int
    seconds: float
    skipped: dict[str, str] = field(default_factory=dict)
    hypotheses: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class RunVerdict:
    """The run. `label` says what hardware or simulation the figures speak of; `bound` is the pass in words;
    `comparisons` are of arms with each other; `not_exercised` names what a pass would not cover; `partial`
    when the run did not end by itself."""

    state: str
    exit_code: int
    reason: str
    label: str
    target: str
    status: str
    partial: bool
    error: str | None
    bound: str
    arms: tuple[ArmVerdict, ...]
    not_exercised: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    warnings: tuple[str, ...] = ()
    thresholds: dict[str, float] = field(default_factory=dict)
    run_id: str = ""
    seed: int = 0
    version: str = ""
    started: str = ""
