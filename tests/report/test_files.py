from pathlib import Path

import pytest

from fidelity.errors import ResultsError
from fidelity.report.files import write_text


def test_a_lone_surrogate_is_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "北京 \ud800")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "北京 \\ud800"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a.part").mkdir()
    with pytest.raises(ResultsError, match=r"cannot write .*: Is a directory"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
