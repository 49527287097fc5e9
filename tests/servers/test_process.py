from pathlib import Path

import pytest

from fidelity.errors import PlanError, StartError
from fidelity.plan import Target
from fidelity.servers import process
from fidelity.servers.launch import Additions
from fidelity.servers.process import Sglang, check_model, installed, launch_line


def python(folder: Path, script: str) -> Target:
    """A target whose Python is a shell script."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Target.model_validate({"kind": "process", "model": "Qwen3.6-35B-A3B-FP8", "python": str(path)})


@pytest.mark.parametrize("script", ["exit 1", "echo hello", "echo", "echo '{}'", "echo 3"])
def test_without_sglang_the_ways_on_are_named(script: str, tmp_path: Path) -> None:
    target = python(tmp_path, script)
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
    [
        ('{"version": "0.5.21", "module": true}', ("-m", "sglang.launch_server")),
        ('{"version": "0.6.0", "module": false}', ("-m", "sglang.cli.main", "serve")),
    ],
)
def test_the_way_to_start_it_follows_what_is_installed(
    says: str, start: tuple[str, ...], tmp_path: Path
) -> None:
    found = installed(python(tmp_path, f"echo a warning of some library\necho '{says}'"))
    assert found.start == start
    assert found.version in says


def test_a_folder_of_its_name_is_not_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartError, match="sglang is not installed here"):
        installed(Target(kind="process", model="m"))


def test_the_line_has_the_presets_flags_and_the_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(kind="process", model="Qwen3.6-35B-A3B-FP8", python="p", flags=("--context-length", "9"))
    guard = Additions({"moe-runner-backend": "triton"}, {"A": "1"})
    line = launch_line(target, Sglang("0.5.21", ("-m", "x")), 7, guard)
    assert line.argv == [
        *("p", "-m", "x", "--model-path", "Qwen/Qwen3.6-35B-A3B-FP8", "--tp-size", "1"),
        *("--mamba-radix-cache-strategy", "extra_buffer", "--attention-backend", "triton"),
        *("--trust-remote-code", "--moe-runner-backend", "triton"),
        *("--host", "127.0.0.1", "--port", "7", "--context-length", "9"),
    ]
    assert line.env["A"] == "1"


def test_a_build_without_a_version_is_asked_for_its_flags(tmp_path: Path) -> None:
    target = python(tmp_path, "echo usage: --mamba-scheduler-strategy X")
    line = launch_line(target, Sglang("0.0.0.dev0", process.MODULE), 7, Additions())
    assert "--mamba-scheduler-strategy" in line.argv


def test_what_is_written_as_a_path_must_hold_a_model(tmp_path: Path) -> None:
    check_model("Qwen/Qwen3.6-35B-A3B-FP8")
    for missing in (str(tmp_path / "none"), "./none", "~/none", "a/b/c"):
        with pytest.raises(PlanError, match="there is no model folder"):
            check_model(missing)
    with pytest.raises(PlanError, match=r"holds no model: it has no config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").touch()
    check_model(str(tmp_path))
