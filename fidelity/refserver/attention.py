"""Full attention with a query gate, per-head query and key norms and partial rotary positions."""

from dataclasses import dataclass

import numpy as np

from .layers import Array, frozen, rms_norm, sigmoid, softmax

QUERY_BLOCK = 256  # query rows scored at once: bounds the memory of long prompts


@dataclass(frozen=True)
class AttentionWeights:
    """One layer's weights, input axis first. ``project`` gives queries, gates, keys, values side by side."""

    heads: int
    kv_heads: int
    head_dim: int
    project: Array  # [hidden, (2 heads + 2 kv_heads) head_dim]
    q_norm: Array  # [head_dim], 1 + w
    k_norm: Array  # [head_dim], 1 + w
    out: Array  # [heads head_dim, hidden]
    frequencies: Array  # [rotary / 2]
    eps: float


@dataclass(frozen=True)
class Piece:
    """One sequence's rows start:stop of a batch, its absolute position and its cached keys and values."""

    start: int
    stop: int
    position: int
    keys: Array  # [length, kv_heads, head_dim]
    values: Array


def forward(w: AttentionWeights, x: Array, pieces: list[Piece]) -> tuple[Array, list[tuple[Array, Array]]]:
    """The layer over x [tokens, hidden]; also each piece's keys and values, cached ones included."""
    width, kv_width = w.heads * w.head_dim, w.kv_heads * w.head_dim
    projected = x @ w.project
    q, gate = projected[:, :width], projected[:, width : 2 * width]
    k, v = projected[:, 2 * width : 2 * width + kv_width], projected[:, 2 * width + kv_width :]
    positions = np.concatenate([np.arange(p.position, p.position + p.stop - p.start) for p in pieces])
    angles = positions.astype(np.float32)[:, None] * w.frequencies
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    q = _rotate(rms_norm(q.reshape(-1, w.heads, w.head_dim), w.q_norm, w.eps), cos, sin)
    k = _rotate(rms_norm(k.reshape(-1, w.kv_heads, w.head_dim), w.k_norm, w.eps), cos, sin)
    v = v.reshape(-1, w.kv_heads, w.head_dim)

    mixed = np.empty((len(x), width), np.float32)
    caches = []
    for piece in pieces:
        rows = slice(piece.start, piece.stop)
        keys = frozen(np.concatenate([piece.keys, k[rows]]))
        values = frozen(np.concatenate([piece.values, v[rows]]))
        mixed[rows] = attend(q[rows], keys, values)
        caches.append((keys, values))
    out: Array = np.matmul(mixed * sigmoid(gate), w.out)
    return out, caches


def attend(q: Array, keys: Array, values: Array) -> Array:
    """Causal attention of the last m positions: q [m, heads, d], keys and values [n, kv_heads, d].

    Returns [m, heads d]. Query i sees keys 0 .. n - m + i.
    """
    m, heads, d = q.shape
    n, kv_heads, _ = keys.shape
    group = heads // kv_heads
    q = q.reshape(m, kv_heads, group, d).transpose(1, 2, 0, 3) * np.float32(d**-0.5)
    k_t, v = keys.transpose(1, 2, 0), values.transpose(1, 0, 2)
    out = np.empty((m, kv_heads, group, d), np.float32)
    for first in range(0, m, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, m)
        seen = n - m + last
        rows = last - first
        scores = q[:, :, first:last].reshape(kv_heads, group * rows, d) @ k_t[:, :, :seen]
        scores = scores.reshape(kv_heads, group, rows, seen)
        if rows > 1:
            ahead = np.arange(seen) > np.arange(seen - rows, seen)[:, None]
            scores = np.where(ahead, np.float32(-np.inf), scores)
        weights = softmax(scores).reshape(kv_heads, group * rows, seen)
        out[first:last] = (weights @ v[:, :seen]).reshape(kv_heads, group, rows, d).transpose(2, 0, 1, 3)
    return out.reshape(m, heads * d)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary positions on the first 2 * cos.shape[-1] channels, first half paired with second half."""
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate(
        [first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]], axis=-1
    )
