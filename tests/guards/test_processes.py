"""Guards in spawned processes, against the stand-in aiter and its split-K fault."""

from __future__ import annotations

from pathlib import Path

from fidelity.guards.markers import prove
from fidelity.guards.registry import guard

from .conftest import STANDIN, Serve

HIDDEN = """
import importlib.machinery, sys
sys.stderr.write('hidden ran\\n')
class Mine:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path) if name == 'aiter.fused_moe' else None
sys.meta_path.insert(0, Mine())
raise RuntimeError('hidden broke')
"""


def test_without_a_guard_small_batches_are_wrong(serve: Serve, tmp_path: Path) -> None:
    # The folder of another run and its variables are still around: "none" disarms them.
    left = {"FIDELITY_GUARD": "splitk", "FIDELITY_GUARD_MARKERS": str(tmp_path / "markers")}
    served = serve("none", given=left, path=str(tmp_path / "guard"))
    assert served.wrong() == {"1", "2"}
    assert served.markers == []
    assert prove(served.markers, guard("none"), 1, suspects_ran=True).ok


def test_sitecustomize_alone_guards_every_scheduler(serve: Serve, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDDEN)
    served = serve("splitk", "--schedulers", "2", version="0.5.10", path=str(hidden))
    assert served.wrong() == set()
    assert len(served.errors) == 2
    assert served.roles() == ["scheduler"] * 2, "the launcher and the detokenizer have no marker of their own"
    for marker in served.markers:
        assert marker.wrapped == "aiter.fused_moe.ck_moe_stage1"
        assert (marker.calls, marker.lowered) == (6, 4)
        assert marker.shapes["M=1 K=2048 block_m=16 kernel=default splitk=8->4"] == {"calls": 2, "lowered": 2}
        assert marker.errors == ()
        assert marker.source_sha256 is not None
    assert prove(served.markers, guard("splitk"), 2, suspects_ran=True).ok
    assert not prove(served.markers, guard("splitk"), 3).ok
    assert served.log.count("hidden ran") >= 4, "the sitecustomize that ours hides runs in each process"


def test_entry_points_guard_and_every_process_tells(serve: Serve) -> None:
    served = serve("splitk", "--plugins", "entry-points", "--api-key", "hush", version="0.5.21")
    assert served.wrong() == set()
    assert served.roles() == ["detokenizer", "launcher", "scheduler"]
    active = [marker for marker in served.markers if marker.active]
    assert [marker.role for marker in active] == ["scheduler"], "aiter is imported for no other process"
    (launcher,) = (marker for marker in served.markers if marker.role == "launcher")
    assert launcher.waits_for == "aiter.fused_moe"
    assert active[0].ppid == launcher.pid
    assert str(STANDIN / "server.py") in launcher.argv
    assert launcher.argv[-2:] == ("--api-key", "***")
    assert prove(served.markers, guard("splitk"), 1, suspects_ran=True).ok


def test_environment_guards_bear_witness(serve: Serve) -> None:
    served = serve("ksplit1", "--plugins", "entry-points", version="0.5.21")
    proof = prove(served.markers, guard("ksplit1"), 1, suspects_ran=True)
    assert proof.ok
    assert proof.warnings == ()
    assert "AITER_KSPLIT=1" in proof.reason
    assert served.wrong() == set()
