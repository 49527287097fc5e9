"""Faults of logits rows: another request's, a row of NaN made flat; and benign noise."""

import hashlib
from dataclasses import replace

import numpy as np

from ..layers import Array
from ..model import Result, Segment
from .forward import ForwardFault, is_hit
from .spec import Fault


class SwappedRow(ForwardFault):
    """In a batch of two or more a request samples from the rows of the one after it."""

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        if len(results) < 2:
            return results
        neighbours = [*results[1:], results[0]]
        return [
            replace(own, logits=_last_rows(own.logits, other.logits)) if self.picks(segment) else own
            for segment, own, other in zip(segments, results, neighbours, strict=True)
        ]


class StaleHidden(ForwardFault):
    """The hidden states a draft starts from are the last one of the forward before; logits are right."""

    def __init__(self, fault: Fault, seed: int) -> None:
        super().__init__(fault, seed)
        self._before: Array | None = None  # [hidden]

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        stale = np.zeros_like(results[-1].hidden[-1]) if self._before is None else self._before
        self._before = results[-1].hidden[-1]
        return [
            replace(result, hidden=np.tile(stale, (len(result.hidden), 1))) if self.picks(segment) else result
            for segment, result in zip(segments, results, strict=True)
        ]


class Flattened(ForwardFault):
    """A row with a NaN is sanitised before sampling: every logit 0, the uniform distribution."""

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        return [replace(result, logits=_sanitised(result.logits)) for result in results]


class HitJitter(ForwardFault):
    """Logits of hits carry normal noise, another draw each time: as of a kernel of other rounding."""

    def __init__(self, fault: Fault, seed: int) -> None:
        super().__init__(fault, seed)
        self._rng = np.random.default_rng(seed)

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        return [
            replace(result, logits=_noisy(result.logits, self.fault["sd"], self._rng))
            if is_hit(segment)
            else result
            for segment, result in zip(segments, results, strict=True)
        ]


class BatchNoise(ForwardFault):
    """Logits carry normal noise that the tokens and the size of the forward decide."""

    def after(self, segments: list[Segment], results: list[Result]) -> list[Result]:
        tokens = sum(len(segment.ids) for segment in segments)
        return [
            replace(result, logits=_noisy(result.logits, self.fault["sd"], self._rng(segment, tokens)))
            for segment, result in zip(segments, results, strict=True)
        ]

    def _rng(self, segment: Segment, tokens: int) -> np.random.Generator:
        at = f"{self.seed} {segment.state.length} {tokens} ".encode() + segment.ids.astype("<i8").tobytes()
        return np.random.default_rng(int.from_bytes(hashlib.blake2b(at, digest_size=8).digest()))


def _last_rows(own: Array, other: Array) -> Array:
    """`own` with its rows from `other`: all of them where there are as many, else the last."""
    return other if len(own) == len(other) else np.concatenate([own[:-1], other[-1:]])


def _sanitised(logits: Array) -> Array:
    broken = np.isnan(logits).any(axis=-1, keepdims=True)
    return np.where(broken, np.float32(0), logits)


def _noisy(logits: Array, sd: float, rng: np.random.Generator) -> Array:
    return logits + np.float32(sd) * rng.standard_normal(logits.shape, np.float32)
