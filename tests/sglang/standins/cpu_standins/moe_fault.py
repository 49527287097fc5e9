"""A fault in the MoE layer, switched while the server runs.

The environment variable FIDELITY_FAULT_FILE names a file that holds `off`, or `MODE [M]`: every MoE forward
over exactly M tokens (1 unless given) then goes wrong.

nan    the output is NaN, as the GPU kernel's was
stale  the first M rows of the layer's latest larger output are added: a kernel that adds onto old memory
zero   the output is 0
"""

import os
from pathlib import Path
from typing import Any

MODULE = "sglang.srt.layers.moe.fused_moe_triton.layer"
_FILE = os.environ.get("FIDELITY_FAULT_FILE")
_read: dict[str, Any] = {"mtime": None, "fault": ("off", 1)}
_larger_outputs: dict[int, Any] = {}


def current() -> tuple[str, int]:
    """(mode, M) as the file says now; ("off", 1) without a file."""
    if not _FILE:
        return "off", 1
    path = Path(_FILE)
    try:
        mtime = path.stat().st_mtime_ns
    except OSError:
        return "off", 1
    if mtime != _read["mtime"]:
        words = path.read_text().split() or ["off"]
        _read.update(mtime=mtime, fault=(words[0], int(words[1]) if len(words) > 1 else 1))
    mode, tokens = _read["fault"]
    return mode, tokens


def patch(module: Any) -> None:
    """Wrap `FusedMoE.forward_impl`, whose first argument is hidden states [tokens, hidden]."""
    original = module.FusedMoE.forward_impl

    def forward_impl(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, hidden_states, *args, **kwargs)
        mode, faulty_tokens = current()
        tokens = hidden_states.shape[0]
        if tokens > faulty_tokens:
            _larger_outputs[self.layer_id] = out[:faulty_tokens].detach().clone()
        if mode == "off" or tokens != faulty_tokens:
            return out
        if mode == "nan":
            return out.fill_(float("nan"))
        if mode == "zero":
            return out.zero_()
        if mode == "stale":
            return out + _larger_outputs[self.layer_id] if self.layer_id in _larger_outputs else out
        raise ValueError(f"unknown fault mode {mode!r} in {_FILE}")

    module.FusedMoE.forward_impl = forward_impl
