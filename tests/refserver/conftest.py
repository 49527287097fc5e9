"""A small random model, helpers to resume it, and the whole model again as slow float64 loops."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from fidelity.refserver.model import Model, Result, Segment, State
from fidelity.refserver.moe import Experts
from fidelity.refserver.random_profile import random_weights
from fidelity.refserver.weights import Config, Weights

CONFIG = Config(
    vocab_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=16,
)


@pytest.fixture(scope="session")
def small_weights() -> Weights:
    """Random weights of a small shape in which no two dimensions that could be confused are equal."""
    return random_weights(CONFIG, seed=1)


@pytest.fixture
def model(small_weights: Weights) -> Model:
    """The small model with no fault and no guard."""
    return Model(small_weights, Experts())


@pytest.fixture
def ids() -> np.ndarray:
    """400 token ids of the small model."""
    return np.random.default_rng(5).integers(0, CONFIG.vocab_size, 400)


def _resume(model: Model, ids: np.ndarray, position: int) -> tuple[Result, State]:
    (cold,) = model.forward([Segment(ids, model.empty(), (position,))])
    return cold, State(
        position,
        cold.checkpoints[position],
        tuple(keys[:position] for keys in cold.state.keys),
        tuple(values[:position] for values in cold.state.values),
    )


@pytest.fixture(scope="session")
def resume() -> Callable[[Model, np.ndarray, int], tuple[Result, State]]:
    """(model, ids, position) -> a fresh prefill of all ids, and the cached state at a checkpoint in it."""
    return _resume


def _jsd(a: np.ndarray, b: np.ndarray) -> float:
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (a.astype(float), b.astype(float)))
    middle = (p + q) / 2
    terms = [np.sum(t[t > 0] * np.log(t[t > 0] / middle[t > 0])) for t in (p, q)]
    return float(max(sum(terms) / 2, 0.0))


@pytest.fixture(scope="session")
def jsd() -> Callable[[np.ndarray, np.ndarray], float]:
    """Jensen-Shannon divergence in nats between the softmaxes of two logit rows."""
    return _jsd


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + 1e-6) * weight


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _delta_rule(q, k, v, g, beta, state):  # type: ignore[no-untyped-def]
    """One head, token by token: q, k [n, dk], v [n, dv], g, beta [n], state [dk, dv]."""
    out, states = [], []
    for t in range(len(q)):
        state = np.exp(g[t]) * state
        state = state + np.outer(k[t], beta[t] * (v[t] - state.T @ k[t]))
        out.append(state.T @ q[t])
        states.append(state)
    return np.array(out), states


def _gdn_layer(t: dict[str, np.ndarray], c: Config, x: np.ndarray) -> np.ndarray:
    heads, group = c.linear_num_key_heads, c.linear_num_value_heads // c.linear_num_key_heads
    dk, dv = c.linear_key_head_dim, c.linear_value_head_dim
    qkvz = (x @ t["linear_attn.in_proj_qkvz.weight"].T).reshape(len(x), heads, -1)
    ba = (x @ t["linear_attn.in_proj_ba.weight"].T).reshape(len(x), heads, -1)
    parts = [qkvz[:, :, :dk], qkvz[:, :, dk : 2 * dk], qkvz[:, :, 2 * dk : 2 * dk + group * dv]]
    mixed = np.concatenate([part.reshape(len(x), -1) for part in parts], axis=1)
    kernel = t["linear_attn.conv1d.weight"][:, 0]
    taps = kernel.shape[1]
    convolved = np.zeros_like(mixed)
    for n in range(len(x)):
        for tap in range(taps):
            if n - taps + 1 + tap >= 0:
                convolved[n] += mixed[n - taps + 1 + tap] * kernel[:, tap]
    convolved = _silu(convolved)
    z = qkvz[:, :, 2 * dk + group * dv :].reshape(len(x), heads * group, dv)
    out = np.zeros((len(x), heads * group, dv))
    for h in range(heads * group):
        at = h // group
        q = convolved[:, at * dk : (at + 1) * dk]
        k = convolved[:, (heads + at) * dk : (heads + at + 1) * dk]
        v = convolved[:, 2 * heads * dk + h * dv : 2 * heads * dk + (h + 1) * dv]
        q = q / np.sqrt((q * q).sum(1, keepdims=True) + 1e-6) / np.sqrt(dk)
        k = k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)
        b, a = ba[:, at, h % group], ba[:, at, group + h % group]
        g = -np.exp(t["linear_attn.A_log"][h]) * np.log1p(np.exp(a + t["linear_attn.dt_bias"][h]))
        core, _ = _delta_rule(q, k, v, g, _sigmoid(b), np.zeros((dk, dv)))
        for n in range(len(x)):
            out[n, h] = _norm(core[n], t["linear_attn.norm.weight"]) * _silu(z[n, h])
    return out.reshape(len(x), -1) @ t["linear_attn.out_proj.weight"].T


def _attention_layer(t: dict[str, np.ndarray], c: Config, x: np.ndarray) -> np.ndarray:
    d, group = c.head_dim, c.num_attention_heads // c.num_key_value_heads
    rotary = int(d * c.partial_rotary_factor)
    frequencies = c.rope_theta ** (-np.arange(0, rotary, 2) / rotary)

    def turned(vector: np.ndarray, position: int) -> np.ndarray:
        half = rotary // 2
        vector = vector.copy()
        turn = np.exp(1j * position * frequencies) * (vector[:half] + 1j * vector[half:rotary])
        vector[:half], vector[half:rotary] = turn.real, turn.imag
        return vector

    qg = (x @ t["self_attn.q_proj.weight"].T).reshape(len(x), c.num_attention_heads, 2 * d)
    keys = (x @ t["self_attn.k_proj.weight"].T).reshape(len(x), c.num_key_value_heads, d)
    values = (x @ t["self_attn.v_proj.weight"].T).reshape(len(x), c.num_key_value_heads, d)
    out = np.zeros((len(x), c.num_attention_heads, d))
    for h in range(c.num_attention_heads):
        at = h // group
        k = [turned(_norm(row[at], 1 + t["self_attn.k_norm.weight"]), n) for n, row in enumerate(keys)]
        for n in range(len(x)):
            q = turned(_norm(qg[n, h, :d], 1 + t["self_attn.q_norm.weight"]), n)
            scores = np.exp([q @ k[past] / np.sqrt(d) for past in range(n + 1)])
            mixed = scores @ values[: n + 1, at] / scores.sum()
            out[n, h] = mixed * _sigmoid(qg[n, h, d:])
    return out.reshape(len(x), -1) @ t["self_attn.o_proj.weight"].T


def _moe_layer(t: dict[str, np.ndarray], c: Config, x: np.ndarray) -> np.ndarray:
    def expert(name: str, row: np.ndarray) -> np.ndarray:
        gate, up, down = (t[f"mlp.{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return down @ (_silu(gate @ row) * (up @ row))

    out = np.zeros_like(x)
    for n, row in enumerate(x):
        odds = np.exp(t["mlp.gate.weight"] @ row)
        best = sorted(range(c.num_experts), key=lambda e: -odds[e])[: c.num_experts_per_tok]
        for e in best:
            out[n] += odds[e] / sum(odds[b] for b in best) * expert(f"experts.{e}", row)
        out[n] += _sigmoid(t["mlp.shared_expert_gate.weight"] @ row) * expert("shared_expert", row)
    return out


def _logits(weights: Weights, ids: np.ndarray) -> np.ndarray:
    tensors = {name: tensor.astype(np.float64) for name, tensor in weights.tensors.items()}
    x = tensors["model.embed_tokens.weight"][ids]
    for i, kind in enumerate(weights.config.layer_types):
        prefix = f"model.layers.{i}."
        t = {name[len(prefix) :]: v for name, v in tensors.items() if name.startswith(prefix)}
        mixer = _gdn_layer if kind == "linear_attention" else _attention_layer
        x = x + mixer(t, weights.config, np.array([_norm(r, 1 + t["input_layernorm.weight"]) for r in x]))
        normed = np.array([_norm(r, 1 + t["post_attention_layernorm.weight"]) for r in x])
        x = x + _moe_layer(t, weights.config, normed)
    normed = np.array([_norm(row, 1 + tensors["model.norm.weight"]) for row in x])
    return normed @ tensors["lm_head.weight"].T


@pytest.fixture(scope="session")
def slow() -> SimpleNamespace:
    """The reference loops: delta_rule, gdn_layer, attention_layer, moe_layer (normed input), logits."""
    return SimpleNamespace(
        delta_rule=_delta_rule,
        gdn_layer=_gdn_layer,
        attention_layer=_attention_layer,
        moe_layer=_moe_layer,
        logits=_logits,
    )


@pytest.fixture(scope="session")
def layer_tensors(small_weights: Weights) -> Callable[[int], dict[str, np.ndarray]]:
    """layer index -> its tensors in float64, under their names inside the layer."""

    def tensors(layer: int) -> dict[str, np.ndarray]:
        prefix = f"model.layers.{layer}."
        named = small_weights.tensors.items()
        return {k[len(prefix) :]: v.astype(np.float64) for k, v in named if k.startswith(prefix)}

    return tensors
