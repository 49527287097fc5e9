"""The model: one forward over the new tokens of several sequences together, as a serving batch runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import attention, gdn, moe
from .build import Layer, build_layers
from .layers import Array, frozen, rms_norm
from .weights import EMBED, HEAD, Weights


@dataclass(frozen=True)
class Recurrent:
    """What the linear layers carry, one entry a layer: conv [channels, kernel - 1], state [Hv, dk, dv]."""

    conv: tuple[Array, ...]
    state: tuple[Array, ...]


@dataclass(frozen=True)
class State:
    """A sequence after ``length`` tokens. Keys and values, one entry a full layer: [length, kv_heads, d]."""

    length: int
    recurrent: Recurrent
    keys: tuple[Array, ...]
    values: tuple[Array, ...]


@dataclass(frozen=True)
class Segment:
    """New tokens of one sequence: ``ids`` continue ``state`` at absolute position ``state.length``.

    ``checkpoints``: absolute positions, multiples of 64 inside the segment, whose :class:`Recurrent` is
    wanted. ``logits_from``: the first absolute position whose logits are wanted; None for the last only.
    ``every_state``: the :class:`Recurrent` after each token is wanted: the recurrence runs token by token.
    ``decode``: the tokens were generated, not sent. ``prompt``: the ids of the whole prompt they belong to,
    ``cached``: how many of them the prefix cache had; the model needs neither, a fault may.
    """

    ids: NDArray[np.integer]
    state: State
    checkpoints: tuple[int, ...] = ()
    logits_from: int | None = None
    decode: bool = False
    every_state: bool = False
    prompt: NDArray[np.integer] | None = None
    cached: int = 0


@dataclass(frozen=True)
class Result:
    """Logits [positions, vocabulary] float32, the state after the segment, and the checkpoints asked for.

    ``hidden`` [positions, hidden]: what the head made the logits from, after the final norm. ``states``:
    the recurrent part after each token, where every one was asked for.
    """

    logits: Array
    state: State
    checkpoints: dict[int, Recurrent]
    hidden: Array
    states: tuple[Recurrent, ...] = ()


class Model:
    """A Qwen3-Next. Arrays it hands out are read-only: states may be shared freely."""

    def __init__(self, weights: Weights, experts: moe.Experts) -> None:
        self.config = weights.config
        self.deterministic = False  # whether each token is computed in a forward of its own
        self.experts = experts
        self.embed = weights.tensors[EMBED]
        self.head = np.ascontiguousarray(weights.tensors[HEAD].T)
        self._norm = 1 + weights.tensors["model.norm.weight"]
        self._layers: list[Layer] = build_layers(weights)

    def empty(self) -> State:
        """The state of a sequence of no tokens."""
        c = self.config
        channels = 2 * c.linear_num_key_heads * c.linear_key_head_dim
        channels += c.linear_num_value_heads * c.linear_value_head_dim
        linear = sum(kind == "linear_attention" for kind in c.layer_types)
        full = len(c.layer_types) - linear
        conv = frozen(np.zeros((channels, c.linear_conv_kernel_dim - 1), np.float32))
        shape = (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        state = frozen(np.zeros(shape, np.float32))
        cache = frozen(np.zeros((0, c.num_key_value_heads, c.head_dim), np.float32))
        return State(0, Recurrent((conv,) * linear, (state,) * linear), (cache,) * full, (cache,) * full)

    def warm_up(self, rounds: int = 8) -> None:
        """Run every layer's experts on dummy batches of 1, 2 and 4 tokens, as engines do to tune kernels.

        It leaves the experts' pool used, so that the finite faults show from the first request on.
        """
        for tokens in (4, 2, 1) * rounds:
            x = self.embed[np.zeros(tokens, np.intp)]
            for layer in self._layers:
                normed = rms_norm(x, layer.post_norm, self.config.rms_norm_eps)
                with np.errstate(over="ignore", invalid="ignore"):
                    moe.forward(layer.moe, normed, self.experts, extend=True)

    def forward(self, segments: Sequence[Segment]) -> list[Result]:
        """Compute every segment's tokens in one batch; GEMMs and experts see all of them together.

        Raises ValueError for no segments, an empty segment, or an id outside the vocabulary.
        """
        if self.deterministic:
            _checked_ids(segments, self.config.vocab_size)
            return [self._one_by_one(segment) for segment in segments]
        return self._together(segments)

    def _one_by_one(self, segment: Segment) -> Result:
        """Every token alone, by the call that decodes one: a row depends on the ids before it and no more.

        A product of one row and one of many round differently, and so does a row by its place among many.
        """
        state, results = segment.state, []
        for at in range(len(segment.ids)):
            alone = replace(
                segment,
                ids=segment.ids[at : at + 1],
                state=state,
                checkpoints=(),
                logits_from=None,
                every_state=False,
            )
            results += self._together([alone])
            state = results[-1].state
        states = {result.state.length: result.state.recurrent for result in results}
        wanted = [results[row] for row in _logit_rows(segment, 0, len(segment.ids))]
        return Result(
            np.concatenate([result.logits for result in wanted]),
            state,
            {position: states[position] for position in segment.checkpoints},
            np.concatenate([result.hidden for result in wanted]),
            tuple(states.values()) if segment.every_state else (),
        )

    def _together(self, segments: Sequence[Segment]) -> list[Result]:
        ids = _checked_ids(segments, self.config.vocab_size)
        ends = np.cumsum([len(segment.ids) for segment in segments]).tolist()
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        extend = not all(segment.decode for segment in segments)
        eps = self.config.rms_norm_eps
        carried: list[list[gdn.Carried]] = []  # by linear layer, then segment
        caches: list[list[tuple[Array, Array]]] = []  # by full layer, then segment
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and inf are what the fault is about
            x = self.embed[ids]
            for layer in self._layers:
                normed = rms_norm(x, layer.input_norm, eps)
                if isinstance(layer.mixer, gdn.GdnWeights):
                    at = len(carried)
                    mixed, after = gdn.forward(layer.mixer, normed, _gdn_pieces(segments, spans, at))
                    carried.append(after)
                else:
                    at = len(caches)
                    mixed, grown = attention.forward(layer.mixer, normed, _kv_pieces(segments, spans, at))
                    caches.append(grown)
                x = x + mixed
                x = x + moe.forward(layer.moe, rms_norm(x, layer.post_norm, eps), self.experts, extend=extend)
            rows = [_logit_rows(segment, *span) for segment, span in zip(segments, spans, strict=True)]
            hidden = rms_norm(x[np.concatenate(rows)], self._norm, eps)
            logits = hidden @ self.head
        cuts = np.cumsum([len(r) for r in rows])[:-1]
        parts = zip(segments, np.split(logits, cuts), np.split(hidden, cuts), strict=True)
        return [
            _result(segment, own, last, [c[i] for c in carried], [kv[i] for kv in caches])
            for i, (segment, own, last) in enumerate(parts)
        ]


def _checked_ids(segments: Sequence[Segment], vocabulary: int) -> NDArray[np.intp]:
    if not segments or any(len(segment.ids) == 0 for segment in segments):
        raise ValueError("a forward needs at least one segment, and each segment at least one token")
    ids = np.concatenate([np.asarray(segment.ids) for segment in segments]).astype(np.intp)
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise ValueError(f"token ids must be between 0 and {vocabulary - 1}")
    return ids


def _gdn_pieces(segments: Sequence[Segment], spans: list[tuple[int, int]], layer: int) -> list[gdn.Piece]:
    return [
        gdn.Piece(
            start,
            stop,
            segment.state.length,
            segment.state.recurrent.conv[layer],
            segment.state.recurrent.state[layer],
            tuple(_positions(segment)) if segment.every_state else segment.checkpoints,
        )
        for segment, (start, stop) in zip(segments, spans, strict=True)
    ]


def _kv_pieces(
    segments: Sequence[Segment], spans: list[tuple[int, int]], layer: int
) -> list[attention.Piece]:
    return [
        attention.Piece(
            start, stop, segment.state.length, segment.state.keys[layer], segment.state.values[layer]
        )
        for segment, (start, stop) in zip(segments, spans, strict=True)
    ]


def _logit_rows(segment: Segment, start: int, stop: int) -> NDArray[np.intp]:
    if segment.logits_from is None:
        return np.arange(stop - 1, stop)
    return np.arange(max(start, start + segment.logits_from - segment.state.length), stop)


def _positions(segment: Segment) -> range:
    """The state lengths after each token of a segment."""
    return range(segment.state.length + 1, segment.state.length + len(segment.ids) + 1)


def _result(
    segment: Segment,
    logits: Array,
    hidden: Array,
    carried: list[gdn.Carried],
    caches: list[tuple[Array, Array]],
) -> Result:
    def recurrent(pairs: list[tuple[Array, Array]]) -> Recurrent:
        return Recurrent(tuple(conv for conv, _ in pairs), tuple(state for _, state in pairs))

    state = State(
        segment.state.length + len(segment.ids),
        recurrent([(c.conv, c.state) for c in carried]),
        tuple(keys for keys, _ in caches),
        tuple(values for _, values in caches),
    )
    kept = {p: recurrent([c.checkpoints[p] for c in carried]) for p in segment.checkpoints}
    every = _positions(segment) if segment.every_state else ()
    states = tuple(recurrent([c.checkpoints[p] for c in carried]) for p in every)
    return Result(logits, state, kept, hidden, states)
