"""`fidelity kernel`: what is run where, what is said of it, and each exit code."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fidelity.kernel.work import Check, Done, Failed, GuardProof, Machine, line

from .conftest import Done as Finished
from .conftest import Here
from .fake_sglang import IMAGE, calls, make_runtime

MODEL = ("kernel", "--model", "Qwen3.6-35B-A3B-FP8", "--tp", "1")
SIZES = (1, 2, 3, 4, 8, 16, 32)


def make_python(folder: Path, error: float, *, done: bool = True, failed: str = "", code: int = 0) -> Path:
    """A python whose operator gives these answers: `error` at M = 1 without a guard, none elsewhere."""
    answers: list[Any] = [Machine("fused_moe", "a GPU", stand_in=False, compute_units=256)]
    answers += [
        Check(1, m, guard, fill, True, error if (m, guard) == (1, "none") else 0.03)
        for guard in ("none", "splitk")
        for m in SIZES
        for fill in ("nan", "large")
    ]
    answers.append(GuardProof("splitk", "aiter.fused_moe.ck_moe_stage1", 14, 2, {}, []))
    answers += [Done(1.0)] if done else []
    if failed:
        answers = [Failed(failed, "do this")]
    (folder / "answers").write_text("".join(map(line, answers)))
    path = folder / "python-of-aiter"
    path.write_text(
        f'#!/bin/sh\nfor last; do :; done\necho "PYTHONPATH=$PYTHONPATH $*"\n'
        f'cp {folder}/answers "$last"\nexit {code}\n'
    )
    path.chmod(0o755)
    return path


def kernel(here: Here, folder: Path, *words: str) -> Finished:
    return here(*MODEL, "--output", str(folder / "run"), *words)


@pytest.mark.parametrize(("error", "code", "state"), [(float("nan"), 10, "FAIL"), (0.03, 0, "PASS")])
def test_the_verdict_is_the_exit_code(
    here: Here, tmp_path: Path, error: float, code: int, state: str
) -> None:
    done = kernel(here, tmp_path, "--python", str(make_python(tmp_path, error)))
    assert done.code == code, done.out + done.err
    assert f"{state} (exit {code})" in done.out
    assert "guard splitk: pass, all 7 calls right" in done.out
    run = tmp_path / "run"
    assert json.loads((run / "kernel.json").read_text())["verdict"]["exit_code"] == code
    assert {"report.md", "junit.xml", "work.json", "answers.jsonl", "kernel.log"} <= {
        path.name for path in run.iterdir()
    }
    said = (run / "kernel.log").read_text()
    # Another Python sees this package and nothing that is installed beside it.
    assert f"PYTHONPATH={run}/package -m fidelity.kernel {run}/work.json {run}/answers.jsonl" in said
    assert not (run / "package").exists()


def test_an_operator_that_cannot_run_says_why(here: Here, tmp_path: Path) -> None:
    python = make_python(tmp_path, 0.03, failed="aiter cannot be imported here", code=3)
    done = kernel(here, tmp_path, "--python", str(python))
    assert done.code == 3
    assert "aiter cannot be imported here; do this" in done.out
    assert "Traceback" not in done.out + done.err


def test_a_crash_is_no_pass(here: Here, tmp_path: Path) -> None:
    done = kernel(here, tmp_path, "--python", str(make_python(tmp_path, 0.03, done=False, code=139)))
    assert done.code == 3
    assert "ended early: exit code 139" in done.out


def test_without_aiter_here_the_ways_on_are_told(here: Here, tmp_path: Path) -> None:
    done = kernel(here, tmp_path)
    assert done.code == 3
    assert "cannot be imported here" in done.out
    assert "--image" in done.out


def test_an_image_gets_the_package_and_the_runs_folder(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    make_runtime(tmp_path, make_python(tmp_path, float("nan")))
    done = kernel(here, tmp_path, "--image", IMAGE)
    assert done.code == 10, done.out + done.err + (tmp_path / "run/kernel.log").read_text()
    words = next(call for call in calls(tmp_path) if call[0] == "run")
    assert f"--volume={tmp_path / 'run'}:/fidelity/run" in words
    assert any(word.endswith("/fidelity:/fidelity/package/fidelity:ro") for word in words)
    assert any(word.startswith("--env=AITER_JIT_DIR=") for word in words)
    assert "--device=/dev/kfd" in words
    assert words[-1] == (
        'PYTHONPATH="/fidelity/package${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m fidelity.kernel '
        "/fidelity/run/work.json /fidelity/run/answers.jsonl"
    )


def test_the_command_can_be_shown(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = kernel(here, tmp_path, "--print-command")
    assert done.code == 0
    assert done.out.split()[:3] == [sys.executable, "-m", "fidelity.kernel"]
    assert not (tmp_path / "run").exists()
    make_runtime(tmp_path, None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert (
        "docker run --rm --name fidelity-kernel "
        in kernel(here, tmp_path, "--print-command", "--image", IMAGE).out
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--backend", "torhc"), 2, "did you mean 'torch'?"),
        (("--device", "gpu"), 2, "--device gpu is not known"),
        (("--guard", "splitt"), 2, "did you mean 'splitk'?"),
        (("--guard", "retreat"), 2, "the kernel check has no guard 'retreat'"),
        (("--tp", "3"), 2, "TP 3 does not divide"),
        (("--gpu", "h200"), 2, "no GPU 'h200' is known here"),
        (("--image", "i", "--runtime", "nothing"), 3, "'nothing' is not on PATH"),
    ],
)
def test_bad_input_is_one_message(
    here: Here, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    done = kernel(here, tmp_path, *words)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_second_check_never_overwrites_the_first(here: Here, tmp_path: Path) -> None:
    python = str(make_python(tmp_path, 0.03))
    assert kernel(here, tmp_path, "--python", python).code == 0
    again = kernel(here, tmp_path, "--python", python)
    assert again.code == 2
    assert "already holds a kernel check" in again.err


def test_an_operator_that_hangs_is_ended(here: Here, tmp_path: Path) -> None:
    python = tmp_path / "python-that-hangs"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    done = kernel(here, tmp_path, "--python", str(python), "--max-minutes", "0.01")
    assert done.code == 3
    assert "not done after 0.01 minutes" in done.out


def test_an_interrupted_check_keeps_what_it_has(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fidelity.kernel import command

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", interrupt)
    done = kernel(here, tmp_path)
    assert done.code == 130
    assert "interrupted" in (tmp_path / "run/report.md").read_text()
