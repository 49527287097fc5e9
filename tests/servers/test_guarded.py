from pathlib import Path

import pytest

from fidelity.errors import NotWhatWasAskedError
from fidelity.guards.markers import Marker
from fidelity.guards.registry import guard
from fidelity.servers.guarded import additions, folders, lay_out, prove

SERVER = {"tp_size": 2, "mamba_radix_cache_strategy": "no_buffer"}


def scheduler(pid: int) -> Marker:
    wrapped = "aiter.fused_moe.ck_moe_stage1"
    return Marker(pid, "splitk", role="scheduler", active=True, wrapped=wrapped, calls=9, lowered=9)


def test_each_start_has_an_empty_folder_for_its_markers(tmp_path: Path) -> None:
    first = folders(tmp_path, "a")
    assert not first.markers.exists()
    lay_out(guard("splitk"), first, "0.5.21")
    (first.markers / "1.json").touch()
    second = folders(tmp_path, "a")
    lay_out(guard("splitk"), second, "0.5.21")
    assert (first.markers.name, second.markers.name) == ("start-1", "start-2")
    assert list(second.markers.iterdir()) == []
    assert folders(tmp_path, "b").markers.name == "start-1"
    assert first.modules == second.modules


def test_an_arm_without_a_guard_brings_no_code(tmp_path: Path) -> None:
    here = folders(tmp_path, "none")
    lay_out(guard("none"), here, "0.5.21")
    assert here.markers.is_dir()
    assert not here.modules.exists()


def test_what_a_guard_adds(tmp_path: Path) -> None:
    here = folders(tmp_path, "a")
    added = additions(guard("splitk"), here, {"PYTHONPATH": "before"})
    assert added.flags == {}
    assert added.env["PYTHONPATH"] == f"{here.modules}:before"
    assert added.env["FIDELITY_GUARD_MARKERS"] == str(here.markers)
    flagged = additions(guard("no-buffer"), here, {})
    assert flagged.flags == {"mamba-radix-cache-strategy": "no_buffer", "page-size": "1"}


def test_every_scheduler_must_tell(tmp_path: Path) -> None:
    assert prove(guard("splitk"), [scheduler(1), scheduler(2)], SERVER, suspects_ran=True) == ()
    with pytest.raises(NotWhatWasAskedError, match="active in 1 of 2 scheduler processes") as caught:
        prove(guard("splitk"), [scheduler(1)], SERVER, suspects_ran=True)
    assert caught.value.exit_code == 3
    assert caught.value.hint


def test_a_guard_that_is_a_flag_is_what_the_server_reports() -> None:
    assert prove(guard("no-buffer"), [], SERVER, suspects_ran=False) == ()
    with pytest.raises(NotWhatWasAskedError, match="reports mamba_radix_cache_strategy 'extra_buffer'"):
        prove(guard("no-buffer"), [], {"mamba_radix_cache_strategy": "extra_buffer"}, suspects_ran=False)


def test_no_process_of_an_unguarded_server_may_tell() -> None:
    with pytest.raises(NotWhatWasAskedError, match="asked was no guard in its processes"):
        prove(guard("none"), [scheduler(1)], SERVER, suspects_ran=False)
