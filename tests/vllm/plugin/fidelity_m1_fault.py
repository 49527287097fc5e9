"""A vLLM plugin: the sparse MoE blocks of Qwen3-Next go wrong when they are given exactly one token.

The environment variable FIDELITY_FAULT_FILE names a file that holds one word, read at every forward:

off     nothing
nan     the output is NaN
noise   the output is noise, another at each forward
fixed   the output is noise, the same at each forward: what repeats agrees with itself
"""

import os
from pathlib import Path
from typing import Any


def register() -> None:
    """Called by vLLM in each of its processes."""
    import torch
    from vllm.model_executor.models.qwen3_next import Qwen3NextSparseMoeBlock as Block

    if getattr(Block, "faulty", False):
        return
    Block.faulty = True
    original = Block.forward

    def forward(self: Any, hidden_states: Any, *args: Any, **options: Any) -> Any:
        out = original(self, hidden_states, *args, **options)
        mode = current()
        if mode == "off" or hidden_states.shape[0] != 1:
            return out
        if mode == "nan":
            return out * float("nan")
        seed = 1 if mode == "fixed" else None
        generator = torch.Generator().manual_seed(seed) if seed is not None else None
        noise = torch.randn(out.shape, generator=generator) * 2
        return noise.to(out.dtype)

    Block.forward = forward


def current() -> str:
    """What the file says now; off without one."""
    path = os.environ.get("FIDELITY_FAULT_FILE")
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else "off"
    except OSError:
        return "off"
