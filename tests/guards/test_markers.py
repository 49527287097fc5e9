"""What markers prove: a guard in every scheduler process, or none in any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fidelity.guards.markers import Marker, prove, prove_reported, read_markers, scheduler_count
from fidelity.guards.registry import guard


def scheduler(pid: int = 2, name: str = "splitk", **told: Any) -> Marker:
    """An active scheduler process that has lowered 3 of 10 calls."""
    usual = {"active": True, "wrapped": "aiter.fused_moe.ck_moe_stage1", "source_sha256": "ab" * 32}
    counts = {"calls": 10, "lowered": 3}
    return Marker(**{"pid": pid, "guard": name, "role": "scheduler", **usual, **counts, **told})


LAUNCHER = Marker(pid=1, guard="splitk", role="launcher", waits_for="aiter.fused_moe")
SPLITK = guard("splitk")


def test_a_guard_in_every_scheduler_is_proven() -> None:
    proof = prove([LAUNCHER, scheduler(2), scheduler(3)], SPLITK, 2, suspects_ran=True)
    assert proof.ok
    assert proof.warnings == ()
    assert (
        "scheduler pid 3: wraps aiter.fused_moe.ck_moe_stage1 (source abababababab), 10 calls, 3 lowered"
        in proof.reason
    )


def test_a_scheduler_without_the_guard_is_no_proof() -> None:
    proof = prove([LAUNCHER, scheduler(2)], SPLITK, 2)
    assert not proof.ok
    assert "active in 1 of 2 scheduler processes" in proof.reason
    assert "launcher pid 1: wraps nothing: aiter.fused_moe was never imported" in proof.reason


@pytest.mark.parametrize("told", [{"active": False, "wrapped": None}, {"role": "detokenizer"}])
def test_a_guard_elsewhere_or_not_at_work_is_no_proof(told: dict[str, Any]) -> None:
    assert not prove([scheduler(**told)], SPLITK, 1).ok


def test_no_marker_is_no_proof() -> None:
    proof = prove([], SPLITK, 1)
    assert not proof.ok
    assert "0 of 1 scheduler processes: no process loaded it" in proof.reason


def test_a_guard_that_went_wrong_is_no_proof() -> None:
    wrong = scheduler(errors=("choosing a split: KeyError: 'x'\n  at line 3",), error_count=4)
    proof = prove([wrong], SPLITK, 1)
    assert not proof.ok
    assert "4 errors, the first: choosing a split: KeyError: 'x'" in proof.reason
    assert "line 3" not in proof.reason


@pytest.mark.parametrize("name", ["none", "triton-moe", "no-buffer"])
def test_an_unguarded_arm_must_have_no_marker(name: str) -> None:
    assert prove([], guard(name), 1).ok
    proof = prove([LAUNCHER], guard(name), 1)
    assert not proof.ok
    assert "there is 'splitk' in launcher pid 1" in proof.reason


def test_another_guard_is_a_stray() -> None:
    assert not prove([scheduler(2), scheduler(3, name="unsplit")], SPLITK, 1).ok


def test_a_guard_that_never_lowered_is_a_warning_once_suspects_ran() -> None:
    idle = [scheduler(lowered=0)]
    assert prove(idle, SPLITK, 1).warnings == ()
    proof = prove(idle, SPLITK, 1, suspects_ran=True)
    assert proof.ok
    assert "never lowered a call" in proof.warnings[0]
    assert "capture" in proof.warnings[0]
    proof = prove([scheduler(lowered=0, calls=0)], SPLITK, 1, suspects_ran=True)
    assert proof.ok
    assert "never called" in proof.warnings[0]


def test_one_rank_that_lowers_is_enough() -> None:
    ranks = [scheduler(2), scheduler(3, lowered=0, calls=0)]
    assert prove(ranks, SPLITK, 2, suspects_ran=True).warnings == ()


def test_a_retreat_that_was_never_asked_is_no_guard() -> None:
    idle = [scheduler(name="retreat", calls=0, lowered=0)]
    assert prove(idle, guard("retreat"), 1).ok
    proof = prove(idle, guard("retreat"), 1, suspects_ran=True)
    assert not proof.ok
    assert "never asked" in proof.reason
    asked = [scheduler(name="retreat", calls=5, lowered=0)]
    assert prove(asked, guard("retreat"), 1, suspects_ran=True).warnings == ()


def test_more_processes_than_expected_and_mixed_sources_are_warnings() -> None:
    proof = prove([scheduler(2), scheduler(3, source_sha256="cd" * 32)], SPLITK, 1)
    assert proof.ok
    assert ["2 scheduler processes" in proof.warnings[0], "different sources" in proof.warnings[1]] == [
        True,
        True,
    ]


def test_witnesses_need_no_calls() -> None:
    told = Marker(pid=2, guard="ksplit1", role="scheduler", active=True, environment={"AITER_KSPLIT": "1"})
    proof = prove([told], guard("ksplit1"), 1, suspects_ran=True)
    assert proof.ok
    assert proof.warnings == ()


@pytest.mark.parametrize(
    ("info", "count"),
    [
        ({}, 1),
        ({"tp_size": 8, "pp_size": 1, "dp_size": 1}, 8),
        ({"tp_size": 2, "pp_size": 2, "dp_size": 2, "enable_dp_attention": False}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ({"tp_size": None}, 1),
    ],
)
def test_scheduler_count(info: dict[str, Any], count: int) -> None:
    assert scheduler_count(info) == count


def test_flags_are_proven_by_what_the_server_reports() -> None:
    assert prove_reported(guard("triton-moe"), {"moe_runner_backend": "triton"}).ok
    assert not prove_reported(guard("triton-moe"), {"moe_runner_backend": "auto"}).ok
    assert not prove_reported(guard("triton-moe"), {}).ok
    for key in ("mamba_radix_cache_strategy", "mamba_scheduler_strategy"):
        assert prove_reported(guard("no-buffer"), {key: "no_buffer"}).ok
        assert not prove_reported(guard("no-buffer"), {key: "extra_buffer"}).ok


def test_files_are_read_by_pid_and_torn_ones_count_as_strays(tmp_path: Path) -> None:
    assert read_markers(tmp_path / "missing") == []
    for pid in (12, 7):
        told = {"pid": pid, "guard": "splitk", "role": "scheduler", "active": True, "errors": [], "later": 1}
        (tmp_path / f"{pid}-1.json").write_text(json.dumps(told))
    (tmp_path / "9-1.tmp").write_text("{")
    assert [marker.pid for marker in read_markers(tmp_path)] == [7, 12]
    assert prove(read_markers(tmp_path), SPLITK, 2).ok
    for text in ("{", "[]", '{"pid": 3}', "\xff"):
        (tmp_path / "odd.json").write_text(text)
        odd = read_markers(tmp_path)[0]
        assert (odd.pid, odd.guard, odd.error_count) == (0, "unknown", 1)
        assert not prove(read_markers(tmp_path), SPLITK, 2).ok
        assert not prove(read_markers(tmp_path), guard("none"), 2).ok
