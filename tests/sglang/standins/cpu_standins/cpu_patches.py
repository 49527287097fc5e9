"""Changes to sglang 0.5.21's modules, each because a CPU without Triton, CUDA and AMX stops there."""

from collections.abc import Callable, Iterator
from typing import Any


def define_torchvision_operators() -> Any:
    """Define the operators that importing torchvision needs and cannot load beside a CPU-only torch.

    Returns the library handle: the definitions live as long as it does.
    """
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _allow_extra_buffer(module: Any) -> None:
    """Tell one check "CUDA": extra_buffer needs the per-chunk states that our CPU kernel returns."""
    validate, platform = module.validate_mamba_extra_buffer, module.get_platform

    class Platform:
        is_cuda = True

        def __getattr__(self, name: str) -> Any:
            return getattr(platform(), name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        module.get_platform = Platform
        try:
            return validate(*args, **kwargs)
        finally:
            module.get_platform = platform

    module.validate_mamba_extra_buffer = wrapped


class _Launch:
    """Stands where a Triton kernel stood: kernel[grid](*args)."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._function


def _allocate_pages_in_torch(module: Any) -> None:
    def extend(prefix: Any, lengths: Any, last: Any, free: Any, out: Any, _block: int, page: int) -> None:
        module.alloc_extend_naive(prefix, lengths, last, free, out, page, out.device)

    def decode(lengths: Any, last: Any, free: Any, out: Any, _block: int, page: int) -> None:
        taken = 0
        for i, (length, slot) in enumerate(zip(lengths.tolist(), last.tolist(), strict=True)):
            if (length - 1) % page:
                out[i] = slot + 1
            else:
                out[i] = free[taken] * page
                taken += 1

    module.alloc_extend_kernel, module.alloc_decode_kernel = _Launch(extend), _Launch(decode)


def _gate_shared_expert_in_torch(module: Any) -> None:
    def launch(hidden: Any, gate: Any, shared: Any, out: Any, *, do_add: bool) -> None:
        gated = (hidden.float() @ gate.float()).sigmoid()[:, None] * shared.float()
        out.copy_(gated + out.float() if do_add else gated)

    module._launch_fused_gate_sigmoid_mul = launch


def _ignore_pinned_memory(module: Any) -> None:
    def unpinned(create: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, pin_memory=False, **kwargs: create(*args, **kwargs)

    torch = module.torch
    for name in ("tensor", "empty", "zeros"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


def _copy_states_in_torch(module: Any) -> None:
    def moves(source: Any, mask: Any, target: Any, count: int) -> Iterator[tuple[int, int]]:
        for i in range(count):
            if bool(mask[i]) and int(source[i]) >= 0 and int(target[i]) >= 0:
                yield int(source[i]), int(target[i])

    def all_layers(
        conv: Any, ssm: Any, source: Any, mask: Any, target: Any, count: int, check_freed_slots: bool = False
    ) -> None:
        for s, t in moves(source, mask, target, count):
            conv[:, t], ssm[:, t] = conv[:, s].clone(), ssm[:, s].clone()

    def one_layer(
        conv: Any, ssm: Any, source: Any, mask: Any, target: Any, count: int, check_freed_slots: bool = False
    ) -> None:
        for s, t in moves(source, mask, target, count):
            conv[t], ssm[t] = conv[s].clone(), ssm[s].clone()

    module.track_mamba_states_all_layers, module.track_mamba_states_if_needed = all_layers, one_layer


def _use_cpu(module: Any) -> None:
    module._use_cpu = True


AFTER: dict[str, Callable[[Any], None]] = {
    "sglang.kernels.ops.attention.fla.fused_norm_gate": _use_cpu,
    "sglang.kernels.ops.attention.fla.layernorm_gated": _use_cpu,
    "sglang.kernels.ops.elementwise.elementwise": _gate_shared_expert_in_torch,
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton": _copy_states_in_torch,
    "sglang.srt.arg_groups.mamba_hook": _allow_extra_buffer,
    "sglang.srt.managers.schedule_batch": _ignore_pinned_memory,
    "sglang.srt.mem_cache.allocator.paged": _allocate_pages_in_torch,
}
