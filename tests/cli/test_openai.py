"""`fidelity check --engine openai` against the embedded engine's chat endpoint: a real server, of which
nothing but the public API is used."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fidelity.plan import Arm, Target
from fidelity.servers.embedded import embedded

from .conftest import Done

Here = Callable[..., Done]


@contextmanager
def served(fault: str, folder: Path) -> Iterator[str]:
    target = Target(kind="embedded", fault=fault)
    with embedded(target, Arm(name="none", guard="none"), folder / "server.log", seed=0) as server:
        yield server.url


def check(here: Here, url: str, *more: str) -> Done:
    few = ("--prompts", "4", "--max-rate", "0.6", "--tail", "1", "--control", "33", "--assume-idle")
    return here("check", url, "--engine", "openai", *few, *more)


def test_a_healthy_engine_passes_with_its_grid_found(here: Here, tmp_path: Path) -> None:
    with served("none", tmp_path) as url:
        done = check(here, url)
    assert done.code == 0, done.out + done.err
    for name in ("L=193 tail=1", "L=225 tail=33"):
        cell = done.cell(name)
        assert (cell["exercised"], cell["corrupt"], cell["agreement"]) == (4, 0, {"same": 8})
    assert done.cell("L=193 cold")["agreement"] == {"other tokens": 4}
    assert done.arm("none")["cold_right"] == 8
    assert not any(obs["input_ids"] for obs in done.observations)
    facts = json.loads((done.directory / "manifest.json").read_text())["arms"]["none"]["facts"]
    assert (facts["engine"], facts["grid"], facts["salt"] > 12) == ("openai", 64, True)
    assert "two cold sends are not of the same tokens" in (done.directory / "report.md").read_text()


def test_the_fault_at_one_token_fails(here: Here, tmp_path: Path) -> None:
    with served("split-k-nan", tmp_path) as url:
        done = check(here, url)
    assert done.code == 10, done.out + done.err
    cell = done.cell("L=193 tail=1")
    assert cell["state"] == "fail"
    assert cell["corrupt"] >= 3
    assert "NaN" in cell["rules"]
    assert done.cell("L=193 cold")["state"] != "fail"
