"""Each detector of the judge is needed: without it some row of the mutation table is no longer as it must be.

The rows are run once and judged many times.
"""

from pathlib import Path

import pytest

from fidelity.judge import judge
from fidelity.manifest import Manifest
from fidelity.observations import Observation, read
from fidelity.runner import OBSERVATIONS
from fidelity.selftest.catalogue import ROWS
from fidelity.selftest.row import Row
from fidelity.selftest.run import Task, record

from .detectors import DETECTORS

pytestmark = pytest.mark.slow

RECORDED = {detector.row for detector in DETECTORS.values()} | {"null-counts"}

Recorded = dict[str, tuple[Row, Manifest, list[Observation]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    found: Recorded = {}
    for row in (row for row in ROWS if row.name in RECORDED):
        folder = tmp_path_factory.mktemp("row")
        manifest = record(Task(row, 0, quick=True), folder)
        found[row.name] = (row, manifest, read(Path(folder) / OBSERVATIONS))
    assert set(found) == RECORDED
    return found


def missed(recorded: Recorded) -> set[str]:
    """The rows whose verdict is not the one that they must have."""
    return {name for name, (row, manifest, sent) in recorded.items() if not row.holds(judge(manifest, sent))}


def test_with_all_detectors_every_row_is_as_it_must_be(recorded: Recorded) -> None:
    assert missed(recorded) == set()


@pytest.mark.parametrize("name", DETECTORS)
def test_without_a_detector_its_row_is_missed(
    recorded: Recorded, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DETECTORS[name].take_out(monkeypatch)
    assert DETECTORS[name].row in missed(recorded)
