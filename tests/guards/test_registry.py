"""Which guards there are, and what a target must be to have one."""

from __future__ import annotations

import pytest

from fidelity.errors import PlanError
from fidelity.guards.registry import GUARDS, check_fits, guard, version_numbers


def test_the_guards() -> None:
    assert list(GUARDS) == [
        "none",
        "splitk",
        "unsplit",
        "block-m32",
        "retreat",
        "ksplit1",
        "no-aiter",
        "triton-moe",
        "no-buffer",
    ]
    assert {one.name for one in GUARDS.values() if one.embedded} == {"none", "splitk", "unsplit", "retreat"}
    assert {one.name: one.min_tail for one in GUARDS.values() if one.min_tail != 1} == {"retreat": 2}
    assert dict(guard("ksplit1").environment) == {"AITER_KSPLIT": "1"}
    assert dict(guard("no-aiter").environment) == {"SGLANG_USE_AITER": "0"}
    assert dict(guard("triton-moe").flags) == {"moe-runner-backend": "triton"}
    for one in GUARDS.values():
        assert one.about
        assert one.proof
        assert bool(one.flags) == (one.applied == "flags") == bool(one.reported)
        assert bool(one.environment) == (one.applied == "environment")


def test_an_unknown_guard_has_a_nearest_one() -> None:
    with pytest.raises(PlanError, match="no guard 'splitq'") as caught:
        guard("splitq")
    assert caught.value.hint == "did you mean 'splitk'?"


@pytest.mark.parametrize("kind", ["process", "container"])
@pytest.mark.parametrize("version", [None, "0.5.13", "0.5.21", "v0.6.0.dev3+gabc", "unknown"])
def test_a_real_server_can_have_any(kind: str, version: str | None) -> None:
    assert [check_fits(name, kind, version).name for name in GUARDS] == list(GUARDS)


def test_the_embedded_engine_says_which_it_has() -> None:
    for name in ("none", "splitk", "unsplit", "retreat"):
        check_fits(name, "embedded")
    with pytest.raises(PlanError, match="embedded engine has no guard 'triton-moe'") as caught:
        check_fits("triton-moe", "embedded")
    assert caught.value.hint == "it has none, retreat, splitk, unsplit"
    with pytest.raises(PlanError) as caught:
        check_fits("no-buffer", "embedded")
    assert "--strategy no_buffer" in (caught.value.hint or "")


def test_a_running_server_is_guarded_by_its_owner() -> None:
    check_fits("none", "attach")
    with pytest.raises(PlanError, match="from outside") as caught:
        check_fits("splitk", "attach")
    assert caught.value.exit_code == 2


def test_versions_that_a_guard_does_not_fit() -> None:
    check_fits("retreat", "process", "0.5.9")
    check_fits("splitk", "process", "0.5.10")
    check_fits("none", "process", "0.4.0")
    with pytest.raises(
        PlanError, match=r"'ksplit1' does not fit sglang 0\.5\.10: sglang has no plugins"
    ) as caught:
        check_fits("ksplit1", "process", "0.5.10")
    assert caught.value.hint == "it fits 0.5.13 and later"
    with pytest.raises(PlanError, match=r"'retreat' does not fit sglang 0\.5\.8"):
        check_fits("retreat", "container", "0.5.8")


def test_unknown_guards_are_unknown_to_every_target() -> None:
    for kind in ("embedded", "attach", "process", "container"):
        with pytest.raises(PlanError, match="there is no guard"):
            check_fits("splitq", kind)


def test_version_numbers() -> None:
    assert version_numbers("0.5.15.post1") == (0, 5, 15)
    assert version_numbers("v0.5.21-rocm724") == (0, 5, 21)
    assert version_numbers(None) is None
    assert version_numbers("main") is None
