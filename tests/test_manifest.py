import json
from pathlib import Path

import pytest

from fidelity.errors import ResultsError
from fidelity.manifest import NAME, ArmRecord, Manifest, load
from fidelity.plan import build
from fidelity.probes.cells import Cell


def made() -> Manifest:
    plan = build({"arms": [{"name": "none"}, {"name": "splitk", "guard": "splitk"}], "seed": 4})
    manifest = Manifest("run-1", "2026-01-01T00:00:00+0000", plan, argv=["fidelity", "run"])
    cell = Cell("L=193 tail=1", "suspect", 193, 1, "why")
    manifest.arms["none"] = ArmRecord("none", 1, cells=[cell], prompts=["a/b"], facts={"engine": "sglang"})
    return manifest


def test_round_trip(tmp_path: Path) -> None:
    manifest = made()
    manifest.save(tmp_path)
    assert load(tmp_path) == manifest
    manifest.status, manifest.error, manifest.exit_code = "failed", "gone", 3
    manifest.save(tmp_path)
    assert load(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_it_holds_what_a_repetition_needs(tmp_path: Path) -> None:
    made().save(tmp_path)
    data = json.loads((tmp_path / NAME).read_text())
    assert {"plan", "argv", "version", "python", "platform", "started", "run_id"} <= set(data)
    assert data["plan"]["seed"] == 4
    assert data["plan"]["thresholds"]["max_rate"] == 0.1


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = made()
    manifest.save(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    manifest.status = "complete"
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ResultsError, match="No space left on device"):
        manifest.save(tmp_path)
    monkeypatch.undo()
    assert load(tmp_path).status == "running"


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="is not a run: No such file") as caught:
        load(tmp_path)
    assert caught.value.hint == "give the folder of a run"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"plan": {}, "arms": []}', '{"plan": 3, "arms": {}}']
)
def test_what_is_no_manifest(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ResultsError, match="cannot be read by this version"):
        load(tmp_path)


def test_a_manifest_of_another_version(tmp_path: Path) -> None:
    made().save(tmp_path)
    data = json.loads((tmp_path / NAME).read_text())
    data["later"] = 1
    (tmp_path / NAME).write_text(json.dumps(data))
    with pytest.raises(ResultsError, match="later"):
        load(tmp_path)
    del data["later"]
    data["plan"]["later"] = 1
    (tmp_path / NAME).write_text(json.dumps(data))
    with pytest.raises(ResultsError, match="later"):
        load(tmp_path)
