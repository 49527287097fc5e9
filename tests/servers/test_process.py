from pathlib import Path

import pytest

from fidelity.errors import StartError
from fidelity.plan import Target
from fidelity.servers.process import installed


def python(folder: Path, script: str) -> Target:
    """A target whose Python is a shell script."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Target.model_validate({"kind": "process", "model": "Qwen3.6-35B-A3B-FP8", "python": str(path)})


def test_without_sglang_the_ways_on_are_named(tmp_path: Path) -> None:
    target = python(tmp_path, "exit 1")
    with pytest.raises(StartError, match=r"'Qwen3\.6-35B-A3B-FP8': sglang is not installed in") as caught:
        installed(target)
    for way in ("install sglang", "--image", "--url", "--model embedded"):
        assert way in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    target = Target.model_validate({"kind": "process", "model": "m", "python": str(tmp_path / "none")})
    with pytest.raises(StartError, match=r"cannot run .*none: No such file"):
        installed(target)


@pytest.mark.parametrize(
    ("says", "start"),
    [("0.5.21 True", ["-m", "sglang.launch_server"]), ("0.6.0 False", ["-m", "sglang.cli.main", "serve"])],
)
def test_the_way_to_start_it_follows_the_version(says: str, start: list[str], tmp_path: Path) -> None:
    target = python(tmp_path, f"echo {says}")
    assert installed(target) == (says.split()[0], [str(tmp_path / "python"), *start])
