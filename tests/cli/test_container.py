"""`fidelity run --image`: with a runtime that checks what it is called with."""

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from fidelity.servers import ready

from .conftest import COMMAND, Done, Here, environment
from .fake_sglang import (
    DIGEST,
    IMAGE,
    SECRET,
    all_gone,
    calls,
    make_model,
    make_python,
    make_runtime,
    said,
    wait_for,
)

QUICK = ("--prompts", "1", "--hits", "1", "--fail-fast", "--tail", "1", "--control", "2")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, and no tools on PATH but those that a test makes."""
    monkeypatch.setattr(ready, "POLL", 0.05)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HF_TOKEN", SECRET)


def words(folder: Path, *more: str, image: str = IMAGE) -> list[str]:
    return ["run", "--model", str(make_model(folder)), "--image", image, *more]


def no_secret_in(done: Done, folder: Path) -> bool:
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return SECRET.encode() not in b"".join(texts) and SECRET not in done.out + done.err


def test_a_whole_run(tmp_path: Path, here: Here) -> None:
    make_runtime(tmp_path, make_python(tmp_path), here=False)
    done = here(*words(tmp_path, *QUICK))
    assert done.code == 10, done.out + done.err
    assert all_gone(tmp_path)
    made = calls(tmp_path)
    assert [call[:2] for call in made] == [
        ["image", "inspect"],
        ["pull", IMAGE],
        ["image", "inspect"],
        ["run", "--rm"],
        ["run", "--rm"],
        ["rm", "--force"],
    ]
    served = made[4]
    name = served[served.index("--name") + 1]
    assert name.startswith("fidelity-")
    assert made[5] == ["rm", "--force", name]
    model, home, run = tmp_path / "model", tmp_path / "home", done.directory
    port = said(tmp_path)["options"]["port"]
    for word in (
        "--device=/dev/kfd",
        "--device=/dev/dri",
        "--group-add=video",
        "--ipc=host",
        "--shm-size=16G",
        "--cap-add=SYS_PTRACE",
        "--security-opt=seccomp=unconfined",
        f"--publish=127.0.0.1:{port}:{port}",
        f"--volume={model}:{model}:ro",
        f"--volume={home}/.cache/huggingface:/root/.cache/huggingface",
        f"--volume={home}/.cache/fidelity/kernels:/fidelity/cache",
        f"--volume={run}/markers/none/start-1:/fidelity/markers",
        "--env=HF_TOKEN",
        "--env=AITER_JIT_DIR=/fidelity/cache/aiter",
        "--env=FIDELITY_GUARD=none",
    ):
        assert word in served, word
    assert "/fidelity/guard" not in " ".join(served)
    assert said(tmp_path)["options"]["host"] == "0.0.0.0"
    record = json.loads((run / "manifest.json").read_text())["arms"]["none"]
    assert record["image"] == f"{IMAGE} ({DIGEST})"
    assert f"image: {IMAGE} ({DIGEST})" in (run / "report.md").read_text()
    assert json.loads((run / "summary.json").read_text())["servers"]["none"]["image"] == record["image"]
    assert no_secret_in(done, tmp_path)


def test_a_guard_goes_in_and_proves_itself(tmp_path: Path, here: Here) -> None:
    make_runtime(tmp_path, make_python(tmp_path, random=True), "podman")
    done = here(*words(tmp_path, "--guard", "ksplit1", "--prompts", "1", "--max-minutes", "0.02"))
    assert done.code == 11, done.out + done.err
    served = next(call for call in calls(tmp_path) if "--name" in call)
    guard, markers = done.directory / "guard", done.directory / "markers" / "ksplit1" / "start-1"
    assert f"--volume={guard}:/fidelity/guard:ro" in served
    assert f"--volume={markers}:/fidelity/markers" in served
    assert "--env=FIDELITY_GUARD_MARKERS=/fidelity/markers" in served
    assert "--env=AITER_KSPLIT=1" in served
    assert served[-1].startswith('PYTHONPATH="/fidelity/guard${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m')
    record = json.loads((done.directory / "manifest.json").read_text())["arms"]["ksplit1"]
    assert [line[:9] for line in record["markers"]] == ["scheduler"]


def test_the_container_is_removed_after_a_kill(tmp_path: Path) -> None:
    make_runtime(tmp_path, make_python(tmp_path, **{"never ready": True}))
    process = subprocess.Popen(
        [COMMAND, *words(tmp_path), "--output", str(tmp_path / "run")],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path / "run" / "server-none.log", 1, process)
    keepers = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(keepers, timeout=30)[1]
    assert calls(tmp_path)[-1][:2] == ["rm", "--force"]
    assert all_gone(tmp_path)


class TestWhatCanGoWrong:
    def fails(self, done: Done, code: int = 3) -> str:
        assert done.code == code, done.out + done.err
        return done.out + done.err

    def test_no_runtime(self, tmp_path: Path, here: Here) -> None:
        out = self.fails(here(*words(tmp_path)))
        assert "no container runtime (docker, podman, nerdctl) is on PATH" in out
        assert "leave out --image" in out

    def test_not_the_wanted_one(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, None)
        out = self.fails(here(*words(tmp_path, "--runtime", "nerdctl")))
        assert "the container runtime 'nerdctl' is not on PATH" in out

    def test_an_image_without_sglang(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, Path("/bin/false"))
        out = self.fails(here(*words(tmp_path)))
        assert f"the image {IMAGE} has no sglang that its python3 finds" in out
        assert "give an sglang image" in out

    def test_an_image_without_python(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, None)
        out = self.fails(here(*words(tmp_path)))
        assert 'has no sglang that its python3 finds: Error: exec: "python3"' in out

    def test_an_image_that_is_nowhere(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, None)
        out = self.fails(here(*words(tmp_path, image="no/such:image")))
        assert "the image no/such:image is not here and docker could not pull it: Error: No such image" in out
        assert "see `fidelity doctor`" in out

    def test_the_runtime_refuses(self, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        make_runtime(tmp_path, make_python(tmp_path))
        monkeypatch.setattr("fidelity.servers.container.ROCM_FLAGS", ("--no-such-thing=1",))
        out = self.fails(here(*words(tmp_path)))
        assert "the server ended with code 125; its last lines:" in out
        assert "unknown flag: --no-such-thing=1" in out

    def test_no_amd_gpu(self, tmp_path: Path, here: Here) -> None:
        line = (
            'docker: error gathering device information while adding custom device "/dev/kfd": no such file'
        )
        make_runtime(tmp_path, make_python(tmp_path, lines=[line], exit=125))
        out = self.fails(here(*words(tmp_path)))
        assert "this machine shows no AMD GPU (/dev/kfd)" in out


class TestPrintCommand:
    def test_what_is_not_here_is_not_pulled(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, None, "nerdctl", here=False)
        done = here("run", "--model", "Qwen3.6-35B-A3B-FP8", "--image", IMAGE, "--print-command")
        assert done.code == 0, done.err
        assert calls(tmp_path) == [["image", "inspect", IMAGE]]
        line = done.out.splitlines()[1]
        assert line.startswith("nerdctl run --rm --name fidelity --device=/dev/kfd")
        assert "--mamba-radix-cache-strategy extra_buffer" in line
        assert "--env=HF_TOKEN " in line
        assert SECRET not in done.out
        assert not done.directory.exists()

    def test_an_older_version_is_read_off_the_tag(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, None, here=False)
        image = "lmsysorg/sglang:v0.5.12-rocm700-mi30x"
        done = here("run", "--model", "Qwen3.6-35B-A3B-FP8", "--image", image, "--print-command")
        assert "--mamba-scheduler-strategy extra_buffer" in done.out

    def test_nvidia(self, tmp_path: Path, here: Here) -> None:
        make_runtime(tmp_path, None, here=False)
        smi = tmp_path / "bin" / "nvidia-smi"
        smi.touch()
        smi.chmod(0o755)
        done = here("run", "--model", "Qwen3.6-35B-A3B-FP8", "--image", IMAGE, "--print-command")
        assert "--gpus=all" in done.out
        assert "/dev/kfd" not in done.out
