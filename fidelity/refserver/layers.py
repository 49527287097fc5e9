"""The small arithmetic every layer uses, in float32."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
ONE = np.float32(1)


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis; zero-centred weights come in as 1 + w."""
    square: Array = np.einsum("...i,...i->...", x, x)[..., None]
    root: Array = np.sqrt(square * np.float32(1 / x.shape[-1]) + np.float32(eps))
    return x / root * scale


def l2_norm(x: Array) -> Array:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    square: Array = np.einsum("...i,...i->...", x, x)[..., None]
    root: Array = np.sqrt(square + np.float32(1e-6))
    return x / root


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); exp may overflow to inf, which is the right limit."""
    e: Array = np.exp(-x)
    y: Array = np.reciprocal(e + ONE)
    return y


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    e: Array = np.exp(-x)
    return x / (e + ONE)


def softmax(x: Array) -> Array:
    """exp(x) / sum(exp(x)) over the last axis."""
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = e.sum(axis=-1, keepdims=True)
    return e / total


def frozen(x: Array) -> Array:
    """The same array, refusing writes from here on: states are shared between requests and the cache."""
    x.flags.writeable = False
    return x
