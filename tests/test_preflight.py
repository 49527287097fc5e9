"""What is known of a local sglang's aiter before it is measured."""

from typing import Any

import pytest

from fidelity import preflight
from fidelity.errors import StartError
from fidelity.installed import Packages
from fidelity.plan import RunPlan, build
from fidelity.probes.cells import Cell
from fidelity.servers.running import RunningServer

UNGUARDED = "def ck_moe_stage1(x, splitk):\n    out = torch.empty(1)\n"
GUARDED = "def ck_moe_stage1(x, splitk):\n    tiles = 2048 // (splitk * 256)\n"
CELL = Cell("L=193 tail=1", "suspect", 193, 1, "")


def plan(kind: str) -> RunPlan:
    return build({"target": {"kind": kind, "model": "m", "python": "/opt/python"}})


def told(kind: str, fake_sglang: Any) -> list[str]:
    from fidelity.engines import sglang

    with fake_sglang().client() as client:
        server = RunningServer(url="http://fake", owned=True, client=client)
        facts = sglang.facts(client)
        return list(preflight.warnings(plan(kind), server, facts, [CELL], knows_ids=True))


@pytest.mark.parametrize(("source", "warned"), [(GUARDED, True), (UNGUARDED, False), (None, False)])
def test_an_aiter_that_guards_itself_is_told(
    source: str | None, warned: bool, fake_sglang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def look(python: list[str]) -> Packages:
        looked.append(python)
        return Packages("0.5.21", "0.1.20", source)

    monkeypatch.setattr(preflight, "look", look)
    assert [message.split(":")[0] for message in told("process", fake_sglang)] == ["aiter-guarded"] * warned
    assert looked == [["/opt/python"]]


def test_a_python_that_cannot_be_looked_at_is_no_reason_to_stop(
    fake_sglang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(python: list[str]) -> Packages:
        raise StartError("no such Python")

    monkeypatch.setattr(preflight, "look", look)
    assert told("process", fake_sglang) == []
