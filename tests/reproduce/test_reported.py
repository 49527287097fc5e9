"""The scripts that go into a run's reports."""

from pathlib import Path
from typing import Any

import pytest

from fidelity.judge import judge
from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.reproduce import reported

from .conftest import NAN

KEY = ("none", "resend", "L=193 tail=1")


@pytest.fixture
def records(pair: Any) -> list[Observation]:
    return [one for number in range(4) for one in pair(f"p{number}", 10 * number, **NAN)]


def test_each_failing_cell_has_its_script(
    manifest: Manifest, records: list[Observation], bodies: Any
) -> None:
    found = reported.scripts(Path("RUN"), judge(manifest, records), manifest, records)
    assert list(found) == [KEY]
    assert len(bodies(found[KEY])) == 2
    assert "fidelity reproduce RUN 'L=193 tail=1' --replay http://server:30000" in found[KEY]


def test_of_a_long_one_stands_the_command(
    manifest: Manifest, records: list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported, "LONGEST", 1000)
    found = reported.scripts(Path("RUN"), judge(manifest, records), manifest, records)
    assert found == {KEY: "fidelity reproduce RUN 'L=193 tail=1'\n"}
