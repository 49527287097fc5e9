"""The wrap of ck_moe_stage1: which calls it changes and how, and that all others pass as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fidelity.guards.inserver import split_k
from fidelity.guards.inserver.marker import Marker
from fidelity.guards.inserver.wrapping import is_wrapped

NAMES = [
    "hidden_states",
    "w1",
    "w2",
    "sorted_token_ids",
    "sorted_expert_ids",
    "num_valid_ids",
    "out",
    "topk",
    "block_m",
    "a1_scale",
    "w1_scale",
    "kernelName",
    "sorted_weights",
    "quant_type",
    "activation",
    "splitk",
    "use_non_temporal_load",
    "dtype",
]
DEFAULTS = {
    "kernelName": "",
    "sorted_weights": None,
    "quant_type": "No",
    "activation": "Gelu",
    "splitk": 1,
    "use_non_temporal_load": False,
    "dtype": None,
}
QUANT_TYPES = ("No", "per_Tensor", "per_Token", "per_1x32", "per_1x128", "per_128x128")


class Silent:
    """A marker that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | None, bool]] = []
        self.errors: list[str] = []
        self.guard = "splitk"

    def call(self, shape: str | None = None, *, lowered: bool = False) -> None:
        self.calls.append((shape, lowered))

    def error(self, doing: str, exc: object) -> None:
        self.errors.append(f"{doing}: {exc}")

    def wraps(self, path: str, _original: object) -> None:
        self.wrapped = path


def recorder(hide_signature: bool = False, default: int = 1) -> Callable[..., Any]:
    """A ck_moe_stage1 that returns exactly how it was called."""

    defaults = DEFAULTS | {"splitk": default}

    def ck_moe_stage1(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs

    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(name, inspect._empty)
        )
        for name in NAMES
    ]
    if not hide_signature:
        ck_moe_stage1.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return ck_moe_stage1


def patched(marker: Silent, choose: split_k.Choose = split_k.safe_split, **how: Any) -> Callable[..., Any]:
    module = ModuleType("aiter.fused_moe")
    module.ck_moe_stage1 = recorder(**how)  # type: ignore[attr-defined]
    split_k.patch(module, marker, choose)  # type: ignore[arg-type]
    assert marker.wrapped == "aiter.fused_moe.ck_moe_stage1"
    return module.ck_moe_stage1


def tile_of(kernel: str, block_m: int) -> int:
    return int(kernel.split("_")[2].split("x")[3]) if kernel else 256 if block_m <= 16 else 128


KERNELS = [
    "",
    "moe_ck2stages_256x16x128x256_1x4_MulABScaleExpertWeight",
    "moe_ck2stages_256x32x128x128_1x4_MulABScaleExpertWeight",
    "moe_ck2stages_256x64x128x64_1x4_MulABScaleExpertWeight",
]
calls = st.fixed_dictionaries(
    {
        "hidden_states": st.builds(
            lambda rows, k: SimpleNamespace(shape=(rows, k)),
            st.integers(1, 64),
            st.sampled_from([128, 256, 512, 1024, 2048, 2560, 3072, 4096, 4100, 7168]),
        ),
        "block_m": st.sampled_from([16, 32, 64, 128]),
        "kernelName": st.sampled_from(KERNELS),
        "quant_type": st.sampled_from(QUANT_TYPES).map(lambda name: SimpleNamespace(name=name)),
        "splitk": st.one_of(st.integers(-1, 32), st.sampled_from([np.int64(8), 8.0])),
    }
)


AT_FAULT = {
    "hidden_states": SimpleNamespace(shape=(1, 2048)),
    "block_m": 16,
    "kernelName": "",
    "quant_type": SimpleNamespace(name="per_1x128"),
    "splitk": 8,
}


AT_FAULT_ARGUMENTS = tuple(AT_FAULT.get(name) for name in NAMES[:15])


@pytest.fixture(scope="module")
def wrapped() -> dict[bool, tuple[Silent, Callable[..., Any]]]:
    """A wrapped recorder with a readable signature (False) and one without (True)."""
    markers = {hidden: Silent() for hidden in (False, True)}
    return {hidden: (marker, patched(marker, hide_signature=hidden)) for hidden, marker in markers.items()}


@settings(max_examples=200)
@example(AT_FAULT, 0, False)
@example(AT_FAULT, len(NAMES), True)
@example(AT_FAULT | {"hidden_states": SimpleNamespace(shape=(1, 512)), "splitk": 2}, 16, False)
@example(AT_FAULT | {"block_m": 32}, 0, False)
@example(AT_FAULT | {"block_m": 32, "splitk": 16}, 0, False)
@example(AT_FAULT | {"kernelName": KERNELS[2]}, 0, False)
@given(calls, st.integers(0, len(NAMES)), st.booleans())
def test_only_single_tile_splits_change_and_only_in_splitk(
    wrapped: dict[bool, tuple[Silent, Callable[..., Any]]],
    chosen: dict[str, Any],
    positional: int,
    hide_signature: bool,
) -> None:
    values = {name: chosen.get(name, object()) for name in NAMES}
    args = tuple(values[name] for name in NAMES[:positional])
    kwargs = {name: values[name] for name in NAMES[positional:]}
    marker, stage1 = wrapped[hide_signature]
    got_args, got_kwargs = stage1(*args, **kwargs)

    assert not marker.errors
    assert len(got_args) == len(args)
    assert got_kwargs.keys() == kwargs.keys()
    got = dict(zip(NAMES, got_args, strict=False)) | got_kwargs
    assert all(got[name] is values[name] for name in NAMES if name != "splitk")

    k, asked = chosen["hidden_states"].shape[-1], int(chosen["splitk"])
    tile = tile_of(chosen["kernelName"], chosen["block_m"])
    block_scale = chosen["quant_type"].name in ("per_1x128", "per_128x128")
    if not block_scale or asked <= 1 or k // (asked * tile) >= 2:
        assert got["splitk"] is values["splitk"]
        assert marker.calls[-1][1] is False
        return
    safe = [split for split in range(2, asked) if k % (split * tile) == 0 and k // (split * tile) >= 2]
    assert got["splitk"] == max(safe, default=1)
    assert marker.calls[-1][1] is True


@pytest.mark.parametrize(
    ("k", "asked", "safe"),
    [(2048, 8, 4), (4096, 16, 8), (2560, 10, 5), (3072, 12, 6), (512, 2, 1), (1280, 5, 1)],
)
def test_known_shapes(k: int, asked: int, safe: int) -> None:
    assert split_k.safe_split(k, asked, 256) == safe
    assert split_k.safe_split(k, safe, 256) == safe or safe == 1


def test_a_split_left_at_its_default_is_not_touched() -> None:
    marker = Silent()
    args, kwargs = patched(marker)(
        SimpleNamespace(shape=(1, 2048)), quant_type=SimpleNamespace(name="per_1x128")
    )
    assert (len(args), set(kwargs)) == (1, {"quant_type"})


def test_a_default_that_splits_is_lowered_too() -> None:
    marker = Silent()
    args, kwargs = patched(marker, default=8)(*AT_FAULT_ARGUMENTS)
    assert args == AT_FAULT_ARGUMENTS
    assert kwargs == {"splitk": 4}


def test_unsplit_takes_every_block_scaled_split_back() -> None:
    marker = Silent()
    stage1 = patched(marker, split_k.never_split)
    hidden = SimpleNamespace(shape=(1, 2048))
    for asked in (2, 4, 8):
        block_scale = SimpleNamespace(name="per_1x128")
        assert stage1(hidden, splitk=asked, block_m=16, quant_type=block_scale)[1]["splitk"] == 1
    other = SimpleNamespace(name="per_1x32")
    assert stage1(hidden, splitk=8, block_m=16, quant_type=other)[1]["splitk"] == 8


def test_what_goes_wrong_in_the_guard_is_kept_and_the_call_goes_on() -> None:
    marker = Silent()
    shapeless = object()
    kwargs = {"splitk": 8, "block_m": 16, "quant_type": SimpleNamespace(name="per_1x128")}
    got_args, got_kwargs = patched(marker)(shapeless, **kwargs)
    assert got_args == (shapeless,)
    assert got_kwargs == kwargs
    assert len(marker.errors) == 1
    assert "shape" in marker.errors[0]


def test_what_the_function_raises_is_raised() -> None:
    module = ModuleType("aiter.fused_moe")

    def ck_moe_stage1(**_: Any) -> None:
        raise RuntimeError("kernel")

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in NAMES]
    ck_moe_stage1.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    module.ck_moe_stage1 = ck_moe_stage1  # type: ignore[attr-defined]
    marker = Silent()
    split_k.patch(module, marker, split_k.safe_split)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="kernel"):
        module.ck_moe_stage1(splitk=1)
    assert not marker.errors


def test_a_function_without_a_split_is_refused() -> None:
    module = ModuleType("aiter.fused_moe")

    def ck_moe_stage1(hidden_states: Any, block_m: int, kernelName: str, quant_type: Any) -> None:
        return None

    module.ck_moe_stage1 = ck_moe_stage1  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="splitk"):
        split_k.patch(module, Silent(), split_k.safe_split)  # type: ignore[arg-type]
    assert module.ck_moe_stage1 is ck_moe_stage1


class TestOnTheFault:
    """The stand-in, whose split of single tiles adds onto what its memory held."""

    @pytest.fixture
    def run(self, fused_moe: ModuleType) -> Callable[..., float]:
        """Largest error of one stage 1 at `rows` tokens, on memory that holds NaN."""
        rng = np.random.default_rng(1)
        w1 = rng.normal(size=(4, 16, 2048), scale=0.02).astype(np.float32)
        w2 = np.empty((4, 2048, 8), np.float32)

        def stage1(rows: int, **how: Any) -> float:
            hidden = rng.normal(size=(rows, 2048)).astype(np.float32)
            chosen = rng.integers(4, size=(rows, 2))
            fused_moe.give_back(np.full((rows, 2, 16), np.nan, np.float32))
            quant_type = fused_moe.QuantType.per_1x128
            got = fused_moe.fused_moe(hidden, w1, w2, None, chosen, quant_type, **how)
            right = fused_moe.silu_and_mul(np.einsum("mk,mtnk->mtn", hidden, w1[chosen]))
            return float(np.abs(got - right).max())

        return stage1

    def test_wrong_without_right_with(
        self, fused_moe: ModuleType, run: Callable[..., float], marker: Marker
    ) -> None:
        assert np.isnan(run(1))
        assert np.isnan(run(2))
        assert run(4) < 1e-5
        split_k.patch(fused_moe, marker, split_k.safe_split)
        assert run(1) < 1e-5, "configurations made before the patch are forgotten"
        assert run(2) < 1e-5
        assert run(4) < 1e-5
        assert (marker.calls, marker.lowered) == (3, 2)

    def test_a_tuned_kernel_of_128_tiles_keeps_its_split(
        self, fused_moe: ModuleType, run: Callable[..., float], marker: Marker
    ) -> None:
        split_k.patch(fused_moe, marker, split_k.safe_split)
        assert run(1, tuned_kernel="moe_ck2stages_256x16x128x128_1x4") < 1e-5
        assert (marker.calls, marker.lowered) == (1, 0)

    def test_twice_wraps_once_and_names_imported_earlier_follow(
        self, fused_moe: ModuleType, marker: Marker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        importer = ModuleType("importer")
        importer.stage1 = original = fused_moe.ck_moe_stage1  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, "importer", importer)
        split_k.patch(fused_moe, marker, split_k.safe_split)
        once = fused_moe.ck_moe_stage1
        split_k.patch(fused_moe, marker, split_k.safe_split)
        assert fused_moe.ck_moe_stage1 is once
        assert once.__wrapped__ is original
        assert once.__name__ == "ck_moe_stage1"
        assert importer.stage1 is once
        assert is_wrapped(once)
        assert not is_wrapped(original)
