"""Blocks of 32 rows: the sorting and the GEMM see the same size, and named kernels keep theirs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from fidelity.guards.inserver import block_m
from fidelity.guards.inserver.marker import Marker


def stage1(fused_moe: ModuleType, quant_type: str, **how: str) -> tuple[float, int]:
    """(largest error at one token on memory that holds NaN, rows a block as the tokens were sorted)."""
    rng = np.random.default_rng(1)
    w1 = rng.normal(size=(4, 16, 2048), scale=0.02).astype(np.float32)
    w2 = np.empty((4, 2048, 8), np.float32)
    hidden, chosen = rng.normal(size=(1, 2048)).astype(np.float32), rng.integers(4, size=(1, 2))
    fused_moe.give_back(np.full((1, 2, 16), np.nan, np.float32))
    kind = fused_moe.QuantType[quant_type]
    got = fused_moe.fused_moe(hidden, w1, w2, None, chosen, kind, **how)
    right = fused_moe.silu_and_mul(np.einsum("mk,mtnk->mtn", hidden, w1[chosen]))
    config = fused_moe.get_2stage_cfgs(1, 2048, 8, 4, 2, kind, how.get("tuned_kernel", ""))
    return float(np.abs(got - right).max()), config.block_m


def test_wrong_without_right_with(fused_moe: ModuleType, marker: Marker) -> None:
    assert np.isnan(stage1(fused_moe, "per_1x128")[0])
    block_m.patch(fused_moe, marker)
    error, rows = stage1(fused_moe, "per_1x128")
    assert error < 1e-5
    assert rows == 32
    assert marker.shapes["block_m=16->32"] == [2, 2]
    assert not marker.errors


def test_named_kernels_and_other_types_keep_their_blocks(fused_moe: ModuleType, marker: Marker) -> None:
    block_m.patch(fused_moe, marker)
    assert stage1(fused_moe, "per_1x128", tuned_kernel="moe_256x16x128x128_1x4")[1] == 16
    assert stage1(fused_moe, "per_Token")[1] == 32
    assert marker.lowered == 0
    assert not marker.errors


def test_only_block_scaled_types_are_enlarged(marker: Marker) -> None:
    module = ModuleType("aiter.fused_moe")
    small = SimpleNamespace(block_m=16, stage1=None, run_1stage=False)
    module.get_2stage_cfgs = lambda token, q_type: small  # type: ignore[attr-defined]
    block_m.patch(module, marker)
    assert module.get_2stage_cfgs(1, SimpleNamespace(name="per_Token")) is small
    assert module.get_2stage_cfgs(1, q_type=SimpleNamespace(name="per_1x32")) is small
    assert not marker.errors


def test_the_cache_can_still_be_cleared_and_twice_wraps_once(fused_moe: ModuleType, marker: Marker) -> None:
    block_m.patch(fused_moe, marker)
    once = fused_moe.get_2stage_cfgs
    stage1(fused_moe, "per_1x128")
    assert once.cache_info().currsize == 1
    once.cache_clear()
    assert once.cache_info().currsize == 0
    block_m.patch(fused_moe, marker)
    assert fused_moe.get_2stage_cfgs is once


def test_an_unreadable_configuration_is_passed_on_and_told(fused_moe: ModuleType, marker: Marker) -> None:
    block_m.patch(fused_moe, marker)
    fused_moe.MOEMetadata = lambda *_: "no configuration"
    kind = fused_moe.QuantType.per_1x128
    assert fused_moe.get_2stage_cfgs(1, 2048, 8, 4, 2, kind) == "no configuration"
    assert marker.error_count == 1


def test_another_signature_is_refused(marker: Marker) -> None:
    module = ModuleType("aiter.fused_moe")
    module.get_2stage_cfgs = lambda token: token  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="q_type"):
        block_m.patch(module, marker)
    assert not marker.active
