"""The gated delta rule with its short causal convolution (Qwen3-Next's linear attention).

For each value head, with S the [dk, dv] state, k and q of unit length and q scaled by dk^-1/2:

    S_t = exp(g_t) S_{t-1};  S_t += k_t (beta_t (v_t - S_t^T k_t))^T;  o_t = S_t^T q_t

(Yang, Kautz and Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464.) A prompt runs in the chunk form: 64
tokens at once through one triangular inverse; a single token runs in the recurrent form, and so do a few
tokens whose states are wanted one by one.
"""

from dataclasses import dataclass

import numpy as np

from .layers import Array, frozen, l2_norm, rms_norm, sigmoid, silu

CHUNK = 64  # tokens: the grid on which a recurrent state can be kept

_LOWER = np.tril(np.ones((CHUNK, CHUNK), dtype=bool))
_STRICTLY_LOWER = np.tril(np.ones((CHUNK, CHUNK), dtype=np.float32), -1)


@dataclass(frozen=True)
class GdnWeights:
    """One layer's weights, input axis first. ``project`` gives q, k, v, z, b, a side by side."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    project: Array  # [hidden, 2 Hk dk + 2 Hv dv + 2 Hv]
    conv: Array  # [kernel, 2 Hk dk + Hv dv]
    decay: Array  # [Hv], -exp(A_log)
    dt_bias: Array  # [Hv]
    norm: Array  # [dv]
    out: Array  # [Hv dv, hidden]
    eps: float


@dataclass(frozen=True)
class Piece:
    """One sequence's rows start:stop of a batch, its absolute position and what it continues from."""

    start: int
    stop: int
    position: int
    conv: Array  # [channels, kernel - 1]
    state: Array  # [Hv, dk, dv]
    checkpoints: tuple[int, ...]


@dataclass(frozen=True)
class Carried:
    """What a piece leaves behind: (convolution context, state) at its end and at each checkpoint."""

    conv: Array
    state: Array
    checkpoints: dict[int, tuple[Array, Array]]


def forward(w: GdnWeights, x: Array, pieces: list[Piece]) -> tuple[Array, list[Carried]]:
    """The layer over x [tokens, hidden]: dense parts over all rows, the recurrence piece by piece."""
    keys, values = w.key_heads * w.key_dim, w.value_heads * w.value_dim
    channels = 2 * keys + values
    projected = x @ w.project
    mixed, z = projected[:, :channels], projected[:, channels : channels + values]
    b, a = projected[:, -2 * w.value_heads : -w.value_heads], projected[:, -w.value_heads :]
    beta = sigmoid(b)
    g = w.decay * np.logaddexp(np.float32(0), a + w.dt_bias)  # the second factor is softplus

    contexts = [np.concatenate([piece.conv.T, mixed[piece.start : piece.stop]]) for piece in pieces]
    convolved = silu(np.concatenate([_convolve(context, w.conv) for context in contexts]))
    q = l2_norm(convolved[:, :keys].reshape(-1, w.key_heads, w.key_dim)) * np.float32(w.key_dim**-0.5)
    k = l2_norm(convolved[:, keys : 2 * keys].reshape(-1, w.key_heads, w.key_dim))
    v = convolved[:, 2 * keys :].reshape(-1, w.value_heads, w.value_dim)
    if w.value_heads != w.key_heads:
        q, k = (np.repeat(t, w.value_heads // w.key_heads, axis=1) for t in (q, k))

    core = np.empty_like(v)
    carried = []
    for piece, context in zip(pieces, contexts, strict=True):
        rows = slice(piece.start, piece.stop)
        if piece.stop - piece.start == 1 or any(position % CHUNK for position in piece.checkpoints):
            state, states = piece.state, {}
            for at in range(piece.start, piece.stop):
                core[at], state = step(q[at], k[at], v[at], g[at], beta[at], state)
                states[piece.position + 1 + at - piece.start] = state
        else:
            core[rows], state, states = chunked(
                q[rows], k[rows], v[rows], g[rows], beta[rows], piece.state, piece.position
            )
        carried.append(_carry(piece, context, state, states))
    gated = rms_norm(core, w.norm, w.eps).reshape(-1, values) * silu(z)
    out: Array = np.matmul(gated, w.out)
    return out, carried


def step(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """One token: q, k [Hv, dk], v [Hv, dv], g, beta [Hv], state [Hv, dk, dv] -> (out [Hv, dv], state)."""
    state = state * np.exp(g)[:, None, None]
    recalled = (k[:, None, :] @ state)[:, 0]
    correction = (v - recalled) * beta[:, None]
    state += k[:, :, None] * correction[:, None, :]
    return (q[:, None, :] @ state)[:, 0], state


def chunked(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, position: int = 0
) -> tuple[Array, Array, dict[int, Array]]:
    """Many tokens: the arguments of :func:`step` with a leading token axis, from an absolute position.

    Returns (out [tokens, Hv, dv], final state, state at each multiple of 64 passed). The rows are laid out
    so that chunks end on absolute multiples of 64; empty rows have beta = g = 0 and leave the state alone.
    """
    tokens, heads, _ = k.shape
    front = position % CHUNK
    chunks = -(-(front + tokens) // CHUNK)
    q, k, v, g, beta = (_lay_out(t, front, chunks) for t in (q, k, v, g[..., None], beta[..., None]))

    total = np.cumsum(g, axis=2)  # log decay since the start of the chunk
    between = total - total.swapaxes(2, 3)
    decay = np.exp(np.where(_LOWER, between, np.float32(-np.inf)))
    grown = np.exp(total)
    k_beta = k * beta
    k_t = k.swapaxes(2, 3)
    overlap: Array = np.matmul(k_beta, k_t)
    inverse = unit_lower_inverse(overlap * decay * _STRICTLY_LOWER)
    new_v = inverse @ (v * beta)
    old_k = inverse @ (k_beta * grown)
    within = (q @ k_t) * decay
    q = q * grown
    k_out = (k * np.exp(total[:, :, -1:] - total)).swapaxes(2, 3)

    out = np.empty((heads, chunks, CHUNK, v.shape[-1]), np.float32)
    states: dict[int, Array] = {}
    for c in range(chunks):
        fresh = new_v[:, c] - old_k[:, c] @ state
        out[:, c] = q[:, c] @ state + within[:, c] @ fresh
        state = state * grown[:, c, -1:] + k_out[:, c] @ fresh
        end = position - front + (c + 1) * CHUNK
        if end <= position + tokens:
            states[end] = state
    flat = out.reshape(heads, chunks * CHUNK, -1)[:, front : front + tokens]
    return flat.transpose(1, 0, 2), state, states


def unit_lower_inverse(a: Array) -> Array:
    """(I + a)^-1 for strictly lower triangular a [..., n, n], n a power of two, by doubling diagonal blocks.

    The lower left block of an inverse is -T22 a21 T11. Summing the powers of -a would cost as much and
    cancels catastrophically where keys repeat: its terms grow like binomial coefficients.
    """
    n = a.shape[-1]
    inverse = np.broadcast_to(np.eye(n, dtype=np.float32), a.shape).copy()
    half = 1
    while half < n:
        size = 2 * half
        shape = (*a.shape[:-2], n // size, size, n // size, size)
        t = np.einsum("...ninj->...nij", inverse.reshape(shape))  # a view of the diagonal blocks
        corner = np.einsum("...ninj->...nij", a.reshape(shape))[..., half:, :half]
        t[..., half:, :half] = -(t[..., half:, half:] @ corner @ t[..., :half, :half])
        half = size
    return inverse


def _lay_out(x: Array, front: int, chunks: int) -> Array:
    """[tokens, heads, d] -> [heads, chunks, 64, d] with ``front`` empty rows before and the rest after."""
    tokens, heads, width = x.shape
    laid = np.zeros((heads, chunks * CHUNK, width), np.float32)
    laid[:, front : front + tokens] = x.transpose(1, 0, 2)
    return laid.reshape(heads, chunks, CHUNK, width)


def _convolve(context: Array, kernel: Array) -> Array:
    """Depthwise causal convolution: context [tokens + kernel - 1, channels] -> [tokens, channels]."""
    tokens = len(context) - len(kernel) + 1
    out: Array = context[:tokens] * kernel[0]
    for tap in range(1, len(kernel)):
        out += context[tap : tap + tokens] * kernel[tap]
    return out


def _carry(piece: Piece, context: Array, state: Array, states: dict[int, Array]) -> Carried:
    width = piece.conv.shape[1]

    def conv_at(position: int) -> Array:
        at = position - piece.position
        return frozen(context[at : at + width].T.copy())

    return Carried(
        conv=conv_at(piece.position + piece.stop - piece.start),
        state=frozen(state),
        checkpoints={p: (conv_at(p), frozen(states[p])) for p in piece.checkpoints},
    )
