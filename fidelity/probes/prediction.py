"""What `cached_tokens` a send must report, from what was sent before in its namespace."""

from dataclasses import dataclass, field

from fidelity.engines.facts import PROMPT_END


@dataclass
class CachePrediction:
    """The prefix cache of one namespace whose sends all share one prefix. All counts are tokens.

    `strategy` extra_buffer: a prefill leaves one checkpoint at the last grid point it computes, or at the
    point where the KV cache matched further than the state did (the branch). no_buffer: the state of a
    finished request is kept at its exact end. align: a prefill stops at the last grid point before its last
    token and leaves a checkpoint there. prompt end: a longer prompt resumes where one before it ended; where
    an identical one does is not known. attention only: whole pages are enough. A match leaves `min_tail`
    tokens to compute.
    """

    grid: int
    strategy: str = "extra_buffer"
    min_tail: int = 1
    kv: int = 0
    checkpoints: set[int] = field(default_factory=set)

    def send(self, length: int) -> int:
        """Record a send of `length` tokens; returns the tokens it is served from the cache."""
        cap = length - self.min_tail
        matched = (
            min(self.kv, cap) // self.grid * self.grid if self.strategy != "no_buffer" else min(self.kv, cap)
        )
        self.kv = max(self.kv, length)
        if self.strategy == "attention only":
            return max(matched, 0)
        hit = max((point for point in self.checkpoints if point <= cap), default=0)
        if self.strategy in ("no_buffer", PROMPT_END):
            self.checkpoints.add(length)
        elif self.strategy == "align":
            self.checkpoints.add((length - 1) // self.grid * self.grid)
            self.checkpoints.discard(0)
        elif matched > hit:
            self.checkpoints.add(matched)
        else:
            self.checkpoints.add(hit + (length - hit) // self.grid * self.grid)
            self.checkpoints.discard(0)
        return hit
