"""The draft head: guesses the tokens after the next one, as Qwen3-Next's multi-token prediction does.

From the target's last hidden state h (which chose a token) and that token t it guesses the token after t:

    x = fc [norm(embed(t)), norm(h)];  x = x + experts(norm(x));  h' = norm(x);  logits = head h'

and goes on from h' and its own guess. Names and order are those of a Qwen3-Next checkpoint's `mtp.*`; unlike
there, the block has no attention, so it needs no cache of its own. Embedding and head are the target's.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import moe
from .build import build_moe
from .layers import Array, rms_norm
from .model import Model
from .weights import Weights, folder_of, unpack

FILE = "draft.npz"
FC = "mtp.fc.weight"
BLOCK = "mtp.layers.0."


def load_draft(profile: str | Path, weights: Weights) -> dict[str, Array]:
    """The draft head's tensors of a profile: [out, in], float32.

    Raises FileNotFoundError when the profile has none, ValueError when it was trained for other weights.
    """
    path = folder_of(profile) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"profile {str(profile)!r} has no draft head: {FILE} is not in its folder")
    header, tensors = unpack(path)
    owner = header.get("target_sha256")
    if owner != weights.sha256:
        raise ValueError(
            f"{path} was trained for weights with sha256 {owner}, these have {weights.sha256}: train it again"
        )
    return tensors


class DraftHead:
    """A draft head on its target, sharing the target's embedding, head and experts' settings."""

    def __init__(self, tensors: dict[str, Array], target: Model) -> None:
        block = {name.removeprefix(BLOCK): t for name, t in tensors.items() if name.startswith(BLOCK)}
        self._target = target
        self._embedding_norm = 1 + tensors["mtp.pre_fc_norm_embedding.weight"]
        self._hidden_norm = 1 + tensors["mtp.pre_fc_norm_hidden.weight"]
        self._fc = np.ascontiguousarray(tensors[FC].T)
        self._post_norm = 1 + block["post_attention_layernorm.weight"]
        self._moe = build_moe(block, target.config)
        self._norm = 1 + tensors["mtp.norm.weight"]

    def forward(self, hidden: Array, ids: NDArray[np.integer]) -> tuple[Array, Array]:
        """One guess for each of n sequences: hidden [n, hidden], ids [n] -> logits [n, vocab], hidden.

        Decoding, whatever the target computes beside it: the experts see n tokens.
        """
        target, eps = self._target, self._target.config.rms_norm_eps
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and inf are what the fault is about
            embedded = rms_norm(target.embed[ids], self._embedding_norm, eps)
            carried = rms_norm(hidden, self._hidden_norm, eps)
            x = np.concatenate([embedded, carried], axis=1) @ self._fc
            normed = rms_norm(x, self._post_norm, eps)
            x = x + moe.forward(self._moe, normed, target.experts, extend=False)
            after = rms_norm(x, self._norm, eps)
            return after @ target.head, after

    def propose(self, hidden: Array, ids: NDArray[np.integer], steps: int) -> NDArray[np.int64]:
        """The next `steps` tokens of n sequences, one forward a step: [n, steps]. NaN logits propose id 0."""
        drafts = np.empty((len(ids), steps), np.int64)
        for step in range(steps):
            logits, hidden = self.forward(hidden, ids)
            ids = logits.argmax(axis=1)
            drafts[:, step] = ids
        return drafts
