"""Guards in the processes of a real sglang 0.5.21 on the CPU: loaded as its plugin, proven by its markers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.guards.apply import environment, write_folder
from fidelity.guards.markers import Marker, prove, read_markers, scheduler_count
from fidelity.guards.registry import guard
from fidelity.prompts.embedded import EmbeddedTokenizer
from fidelity.prompts.fitting import fit
from fidelity.prompts.loading import load_families
from fidelity.prompts.select import find

from ..sglang.conftest import HERE as SGLANG_TESTS
from ..sglang.conftest import RealServer, quiz_model, serving, sglang_python  # noqa: F401  (fixtures)
from .conftest import Serve

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

STANDINS = str(SGLANG_TESTS / "standins")
LIMIT = "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len"


@dataclass(frozen=True)
class Guarded:
    """A real server under a guard, and the folder of its markers."""

    server: RealServer
    folder: Path

    def markers(self) -> list[Marker]:
        return read_markers(self.folder)

    def ask(self, length: int, namespace: str, tokens: int = 1) -> tuple[int, int, str]:
        """(tokens from the cache, prompt tokens, text) for the first thread's prompt at `length` tokens."""
        prompt = find(load_families(), "capital/france")
        ids = fit(prompt.family, prompt.item, length, EmbeddedTokenizer(False)).ids
        body: dict[str, Any] = {"input_ids": list(ids), "extra_key": namespace}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": tokens}
        answer = httpx.post(f"{self.server.url}/generate", json=body, timeout=120).json()
        meta = answer["meta_info"]
        return meta["cached_tokens"], meta["prompt_tokens"], answer["text"]


@contextmanager
def guarded(name: str, python: Path, model: Path, folder: Path) -> Iterator[Guarded]:
    """Serve the model with a guard's folder before the stand-ins on the path of every process."""
    markers = folder / "markers"
    markers.mkdir()
    write_folder(folder / "guard", "0.5.21")
    given = environment(guard(name), folder / "guard", markers, {"PYTHONPATH": STANDINS})
    # serve.sh sets PYTHONPATH itself, so the interpreter that it is given puts the guard's before it.
    wrapper = folder / "python"
    exports = "".join(f"export {name}='{value}'\n" for name, value in given.items())
    wrapper.write_text(f'#!/bin/sh\n{exports}exec "{python}" "$@"\n')
    wrapper.chmod(0o755)
    with serving(wrapper, model, folder, "--dtype", "bfloat16") as server:
        yield Guarded(server, markers)


@pytest.fixture(scope="module")
def retreating(
    sglang_python: Path,  # noqa: F811
    quiz_model: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guarded]:
    with guarded("retreat", sglang_python, quiz_model, tmp_path_factory.mktemp("retreat")) as server:
        yield server


class TestRetreat:
    """The cap on the real Req._compute_max_prefix_len, by the tree core of 0.5.21, MoE broken at M = 1."""

    @pytest.mark.parametrize(
        ("length", "cached"), [(193, [0, 0, 128, 128]), (194, [0, 192, 192]), (65, [0, 0, 0])]
    )
    def test_no_tail_of_one_token_is_left(self, retreating: Guarded, length: int, cached: list[int]) -> None:
        retreating.server.set_fault("nan")
        sent = [retreating.ask(length, f"retreat-{length}") for _ in cached]
        assert [one[0] for one in sent] == cached
        assert all(prompt - hit >= 2 for hit, prompt, _ in sent)
        assert [one[2] for one in sent] == ["Paris"] * len(cached)

    def test_decode_is_not_what_it_guards(self, retreating: Guarded) -> None:
        retreating.server.set_fault("nan")
        assert retreating.ask(194, "decode", tokens=4)[2] == "Paris!!!"

    def test_the_scheduler_and_no_other_process_proves_it(self, retreating: Guarded) -> None:
        retreating.ask(194, "proof")
        info = httpx.get(f"{retreating.server.url}/server_info", timeout=60).json()
        proof = prove(retreating.markers(), guard("retreat"), scheduler_count(info), suspects_ran=True)
        assert proof.ok, proof.reason
        assert proof.warnings == ()
        by_role = {marker.role: marker for marker in retreating.markers()}
        assert {"launcher", "scheduler"} <= by_role.keys()
        assert [marker.role for marker in retreating.markers() if marker.calls] == ["scheduler"]
        assert by_role["scheduler"].wrapped == LIMIT
        assert by_role["scheduler"].title.startswith("sglang::scheduler")
        assert by_role["scheduler"].ppid == by_role["launcher"].pid
        assert by_role["scheduler"].versions["sglang"] == "0.5.21"
        assert not prove(retreating.markers(), guard("none"), 1).ok


def test_a_guard_for_aiter_is_not_proven_where_aiter_is_not(
    sglang_python: Path,  # noqa: F811
    quiz_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with guarded("splitk", sglang_python, quiz_model, tmp_path) as server:
        assert server.ask(193, "healthy")[2] == "Paris"
        proof = prove(server.markers(), guard("splitk"), 1, suspects_ran=True)
    assert not proof.ok
    assert "active in 0 of 1 scheduler processes" in proof.reason
    assert "scheduler pid" in proof.reason
    assert "aiter.fused_moe was never imported" in proof.reason


def test_sglangs_own_plugins_load_it_into_spawned_processes(serve: Serve, sglang_python: Path) -> None:  # noqa: F811
    """Against the stand-in aiter; a list of allowed plugins does not keep the guard out."""
    served = serve(
        "splitk",
        *("--plugins", "sglang", "--schedulers", "2"),
        version="0.5.21",
        python=sglang_python,
        path=STANDINS,
        given={"SGLANG_PLUGINS": "another"},
    )
    assert served.wrong() == set()
    assert served.roles() == ["detokenizer", "launcher", "scheduler", "scheduler"]
    proof = prove(served.markers, guard("splitk"), 2, suspects_ran=True)
    assert proof.ok, proof.reason
    assert proof.warnings == ()
