"""How the next token is chosen, and when a request has enough of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .errors import BadRequestError
from .logprobs import Row, log_softmax

GREEDY_BELOW = 1e-6  # temperatures below it are treated as zero

# Understood, and refused when they would change the answer: silence would let a client believe they acted.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "json_schema": ("",),
    "regex": ("",),
    "ebnf": ("",),
    "structural_tag": ("",),
    "stop_regex": ("", []),
}


@dataclass(frozen=True)
class Sampling:
    """Parameters of one request; `seed` None draws from the server's own generator."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def parse_sampling(params: Mapping[str, Any], default_max_new_tokens: int = 128) -> Sampling:
    """Sampling parameters from the `sampling_params` of a request; unknown keys are ignored.

    Raises BadRequestError for a value out of range, of the wrong type, or that this engine cannot obey.
    """
    for name, neutral in NEUTRAL.items():
        if params.get(name) is not None and params[name] not in neutral:
            raise BadRequestError(f"{name} is not supported by the embedded engine, got {params[name]!r}.")
    known = {field.name for field in fields(Sampling)}
    given = {name: value for name, value in params.items() if name in known and value is not None}
    given.setdefault("max_new_tokens", default_max_new_tokens)
    for name in ("stop", "stop_token_ids"):
        if name in given:
            given[name] = tuple(given[name] if isinstance(given[name], list) else [given[name]])
    for name in ("temperature", "top_p", "min_p"):
        if name in given:
            given[name] = _float(name, given[name])
    for name in ("max_new_tokens", "top_k", "sampling_seed"):
        if name in given:
            given[name] = _integer(name, given[name])
    sampling = Sampling(**given)
    _verify(sampling)
    return sampling


def choose(logits: Row, sampling: Sampling, rng: np.random.Generator) -> tuple[int, Row]:
    """The next token id of one logits row [vocab], and the log p [vocab] a reply quotes.

    Greedy quotes the raw distribution, sampling the one at its temperature. A row of NaN gives id 0 either
    way: argmax does, and there is nothing to draw from.
    """
    if sampling.greedy:
        return int(np.argmax(logits)), log_softmax(logits)
    logprobs = log_softmax(logits / np.float32(sampling.temperature))
    if not np.isfinite(logprobs).all():
        return int(np.argmax(logits)), logprobs
    return _draw(np.exp(logprobs.astype(np.float64)), sampling, rng), logprobs


def _draw(
    probabilities: np.ndarray[Any, np.dtype[np.float64]], sampling: Sampling, rng: np.random.Generator
) -> int:
    order = np.argsort(-probabilities, kind="stable")
    sorted_p = probabilities[order]
    before = np.cumsum(sorted_p) - sorted_p
    keep = (before < sampling.top_p) & (sorted_p >= sampling.min_p * sorted_p[0])
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    keep[0] = True
    kept = np.where(keep, sorted_p, 0.0)
    cumulative = np.cumsum(kept)
    return int(order[np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")])


def _verify(sampling: Sampling) -> None:
    if not math.isfinite(sampling.temperature) or sampling.temperature < 0:
        raise BadRequestError(
            f"temperature must be a non-negative finite number, got {_shown(sampling.temperature)}."
        )
    if not 0.0 < sampling.top_p <= 1.0:
        raise BadRequestError(f"top_p must be in (0, 1], got {_shown(sampling.top_p)}.")
    if not 0.0 <= sampling.min_p <= 1.0:
        raise BadRequestError(f"min_p must be in [0, 1], got {_shown(sampling.min_p)}.")
    if sampling.top_k < 1 and sampling.top_k != -1:
        raise BadRequestError(f"top_k must be -1 (disable) or at least 1, got {sampling.top_k}.")
    if sampling.max_new_tokens < 0:
        raise BadRequestError(f"max_new_tokens must be at least 0, got {sampling.max_new_tokens}.")
    if not all(isinstance(text, str) and text for text in sampling.stop):
        raise BadRequestError("stop must be a non-empty string or a list of them.")
    if not all(type(token) is int for token in sampling.stop_token_ids):
        raise BadRequestError("stop_token_ids must be a list of integers.")


def _float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequestError(f"{name} must be a number, got {value!r}.")
    return float(value)


def _integer(name: str, value: Any) -> int:
    if type(value) is not int:
        raise BadRequestError(f"{name} must be an integer, got {value!r}.")
    return int(value)


def _shown(value: float) -> str:
    return f"{value:g}"
