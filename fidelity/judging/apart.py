"""The cold answers of two starts of a server, held against each other."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fidelity.observations import Answer, Observation
from fidelity.stats.divergence import divergences
from fidelity.stats.scores import token_scores
from fidelity.stats.topk import FloatArray, TopK, stack

Starts = dict[int, dict[str, Observation]]
"""visit -> group (a prompt at a length) -> its answer."""


@dataclass(frozen=True)
class Apart:
    """Two starts on the same n groups of `prompts`. JSD and KL are lower bounds at the first token, `k3` and
    `move` means over the prompt's own tokens, all in nats [n]; `deltas` are |delta logprob| of all tokens."""

    prompts: tuple[str, ...]
    jsd: FloatArray
    kl: FloatArray
    k3: FloatArray
    move: FloatArray
    deltas: FloatArray

    def by_prompt(self, quantity: str) -> dict[str, float]:
        """The mean of one quantity over the lengths of each prompt."""
        found: dict[str, list[float]] = defaultdict(list)
        for prompt, value in zip(self.prompts, getattr(self, quantity), strict=True):
            found[prompt].append(float(value))
        return {prompt: float(np.mean(values)) for prompt, values in found.items()}


def starts(observations: Sequence[Observation]) -> Starts:
    """The answers of the last attempt of each group."""
    found: Starts = defaultdict(dict)
    for obs in sorted(observations, key=lambda obs: obs.attempt):
        if not obs.answer.failed:
            found[obs.visit][obs.group] = obs
    return found


def hold(one: Mapping[str, Observation], other: Mapping[str, Observation]) -> Apart:
    """The second against the first, over the groups that both have."""
    groups = sorted(one.keys() & other.keys())
    pairs = [(one[group].answer, other[group].answer) for group in groups]
    found = divergences(stack([_first(a) for a, _ in pairs]), stack([_first(b) for _, b in pairs]))
    scores = [_scores(a, b) for a, b in pairs]
    deltas = [np.abs(k1) for k1, _ in scores]
    return Apart(
        prompts=tuple(one[group].prompt for group in groups),
        jsd=found.jsd_lower,
        kl=found.kl_lower,
        k3=np.array([k3.mean() for _, k3 in scores]),
        move=np.array([delta.mean() for delta in deltas]),
        deltas=np.concatenate(deltas) if deltas else np.zeros(0),
    )


def _first(answer: Answer) -> TopK | None:
    if not answer.top or answer.mismatched:
        return None
    ids, logprobs = zip(*answer.top[0], strict=True) if answer.top[0] else ((), ())
    return TopK.of(ids, logprobs)


def _scores(one: Answer, other: Answer) -> tuple[FloatArray, FloatArray]:
    """k1 and k3 of each of the prompt's tokens; one NaN where there is nothing to compare."""
    if not one.scored or len(one.scored) != len(other.scored) or one.mismatched or other.mismatched:
        nothing = np.array([np.nan])
        return nothing, nothing
    scores = token_scores(np.array(one.scored), np.array(other.scored))
    return scores.k1, scores.k3
