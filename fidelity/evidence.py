"""Which sends of a run prove something: observations grouped by prompt, each judged against its cold send."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fidelity.compare import Agreement, broken_rules
from fidelity.observations import Observation
from fidelity.probes.cells import Cell

MISMATCHED = "the logprobs are of other tokens than the answer's: nothing can be read off them"


@dataclass
class Group:
    """One prompt at one length in one attempt: its judged sends, and the longer unjudged ones. `longer`
    scored the prompt with more tokens behind it. Of an attempt that is not the `last`, only what is corrupt
    counts."""

    prompt: str
    cold: Observation
    cold2: Observation | None = None
    hits: list[Observation] = field(default_factory=list)
    show_cold: Observation | None = None
    show_hit: Observation | None = None
    last: bool = True
    longer: Observation | None = None
    _cold_rules: tuple[float, tuple[str, ...]] | None = field(default=None, repr=False, compare=False)

    def cold_rules(self, near_tie: float) -> tuple[str, ...]:
        """The absolute rules that the cold answer breaks by itself, found once."""
        if self._cold_rules is None or self._cold_rules[0] != near_tie:
            self._cold_rules = (near_tie, broken_rules(self.cold.answer, near_tie))
        return self._cold_rules[1]

    @property
    def begins_right(self) -> bool:
        """Does the cold answer begin as the known one does?"""
        text = (self.cold.answer.text or "").strip()
        return bool(text) and self.cold.expected_text.strip().startswith(text)


@dataclass(frozen=True)
class Judged:
    """One judged send against its cold one; `missed` is why it proves nothing about the path, None when it
    does."""

    group: Group
    send: Observation
    agreement: Agreement
    missed: str | None


def groups_of(observations: Sequence[Observation]) -> list[Group]:
    """The groups of one arm, one for each attempt that has a cold answer."""
    by_key: dict[tuple[str, int], Group] = {}
    # A moved prompt is sent cold last.
    for obs in sorted(observations, key=lambda obs: obs.role != "cold"):
        key = (obs.group, obs.attempt)
        if obs.role == "cold":
            by_key[key] = Group(obs.prompt, obs)
        elif key in by_key:
            group = by_key[key]
            if obs.role == "cold2":
                group.cold2 = obs
            elif obs.role == "longer":
                group.longer = obs
            elif obs.role == "hit":
                group.hits.append(obs)
            elif obs.role == "show-cold":
                group.show_cold = obs
            elif obs.role == "show-hit":
                group.show_hit = obs
    last = dict(by_key.keys())
    for (name, attempt), group in by_key.items():
        group.last = attempt == last[name]
    return list(by_key.values())


def missed(group: Group, hit: Observation, cell: Cell, *, structural: bool) -> str | None:
    """Why a hit proves nothing about its path, None when it does. `structural`: under a guard that leaves no
    such tail, what the guard leaves is what counts."""
    if hit.answer.failed:
        return "the request failed"
    cold = not_cold(group.cold)
    if cold:
        return cold
    if hit.answer.mismatched:
        return MISMATCHED
    if hit.answer.cached_tokens is None:
        return "the server reports no cached_tokens"
    if hit.answer.prompt_tokens != hit.length:
        return f"prompt_tokens {hit.answer.prompt_tokens} instead of {hit.length}"
    wanted = hit.expected_cached if structural else cell.position
    if cell.moved or hit.answer.cached_tokens == wanted:
        return _contradicted(group, hit, cell)
    no_hit = "" if hit.answer.cached_tokens else "no hit: "
    return f"{no_hit}cached_tokens {hit.answer.cached_tokens} instead of {wanted}"


def _contradicted(group: Group, hit: Observation, cell: Cell) -> str | None:
    """What speaks against a hit whose own count is right: another rank, company, the load figures."""
    rank, cold_rank = hit.answer.dp_rank, group.cold.answer.dp_rank
    if rank != cold_rank:
        return f"DP rank {rank} answered, and rank {cold_rank} the cold send"
    if hit.answer.replica != group.cold.answer.replica:
        return f"replica {hit.answer.replica} answered, and {group.cold.answer.replica} the cold send"
    if hit.alone is False:
        # A larger batch is what a path control is for; a suspect must be alone.
        return "other requests ran at the same time" if cell.kind == "suspect" else None
    if hit.alone and hit.computed is not None and hit.computed != hit.answer.computed:
        return f"the server's load figures count {hit.computed} tokens computed, not {hit.answer.computed}"
    return None


def not_cold(send: Observation) -> str | None:
    """Why a cold send is none, None when it is."""
    if send.answer.failed:
        return "the cold request failed"
    if send.answer.mismatched:
        return MISMATCHED
    if send.answer.error is not None:
        return None  # a NaN that came as an HTTP error: an answer, without counts
    if send.answer.cached_tokens is None:
        return "the server reports no cached_tokens"
    if send.answer.cached_tokens > send.shared:
        return "the cold send was served from the cache"
    if send.answer.prompt_tokens != send.length:
        return f"prompt_tokens {send.answer.prompt_tokens} instead of {send.length}"
    return None
