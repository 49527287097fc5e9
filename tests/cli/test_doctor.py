"""`fidelity doctor` with tools, packages and models that the test makes."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from fidelity import doctor
from fidelity.doctor import Finding

from .conftest import Here
from .fake_sglang import IMAGE, make_python, make_runtime

ROCMINFO = """
Agent 1
  Name:                    AMD EPYC 9575F 64-Core Processor
  Marketing Name:          AMD EPYC 9575F 64-Core Processor
Agent 2
  Name:                    {arch}
  Uuid:                    GPU-1
  Marketing Name:          AMD Instinct MI350X
  ISA Info:
      Name:                    amdgcn-amd-amdhsa--{arch}:sramecc+:xnack-
Agent 3
  Name:                    {arch}
  Uuid:                    GPU-2
  Marketing Name:          AMD Instinct MI350X
"""
AMD_SMI = """GPU: 0
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
        TARGET_GRAPHICS_VERSION: gfx942
"""
SIGNATURE = (
    "def ck_moe_stage1(hidden_states, w1, w2, out, topk, block_m, kernelName='', quant_type=0, splitk=1):\n"
)
UNGUARDED = (
    SIGNATURE
    + """    split = quant_type is QuantType.per_1x128 and splitk > 1
    scratch = torch.empty((topk, w1.shape[1]), dtype=torch.float32) if split else out
    aiter.ck_moe_stage1_fwd(hidden_states, w1, w2, scratch, topk, kernelName, splitk if split else 0)
"""
)
GUARDED = UNGUARDED.replace(
    "splitk > 1\n", "splitk > 1\n    split = split and hidden_states.shape[-1] // (splitk * 256) > 1\n"
)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, no tools, and an embedded engine that is not started."""
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "embedded_engine", lambda: Finding("embedded engine", "ok", "not started"))


def tool(folder: Path, name: str, text: str, code: int = 0) -> None:
    path = folder / "bin" / name
    (folder / f"{name}.txt").write_text(text)
    path.write_text(f"#!/bin/sh\n/bin/cat '{folder / name}.txt'\nexit {code}\n")
    path.chmod(0o755)


def add_aiter(python: Path, source: str, version: str = "0.1.20") -> None:
    (site,) = python.parent.glob("site-*")
    (site / "aiter").mkdir()
    (site / "aiter" / "__init__.py").write_text("raise RuntimeError('aiter was imported to look at it')\n")
    (site / "aiter" / "fused_moe.py").write_text(source)
    about = site / f"amd_aiter-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: amd-aiter\nVersion: {version}\n")


def by_name(out: str) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(out)}


def test_on_a_bare_machine_each_line_has_its_remedy(tmp_path: Path, here: Here) -> None:
    done = here("doctor", "--python", sys.executable)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("ok      fidelity: ")
    assert "ok      embedded engine: profile quiz-state answers" in done.out
    for says, remedy in (
        ("note    GPU: none", "--model embedded and fidelity check URL do not"),
        ("note    container runtime: none", "only --image needs one"),
        (f"missing sglang: none in {sys.executable}", "--url or --model embedded"),
        ("note    model: Qwen/Qwen3.6-35B-A3B-FP8 is not on this machine", "hf download Qwen/Qwen3.6-35B"),
    ):
        (at,) = (number for number, line in enumerate(lines) if line.startswith(says))
        assert remedy in lines[at + 1]
    assert not (tmp_path / ".cache").exists()


@pytest.mark.usefixtures("without_engine")
class TestFindings:
    def look(self, here: Here, *words: str) -> dict[str, dict[str, Any]]:
        done = here("doctor", "--json", *words)
        assert done.code == 0, done.out + done.err
        return by_name(done.out)

    @pytest.mark.parametrize(
        ("name", "text", "says", "state"),
        [
            ("rocminfo", ROCMINFO.format(arch="gfx950"), "2 x gfx950 AMD Instinct MI350X (rocminfo)", "ok"),
            ("rocminfo", ROCMINFO.format(arch="gfx90a"), "2 x gfx90a AMD Instinct MI350X (rocminfo)", "note"),
            ("amd-smi", AMD_SMI, "1 x gfx942 AMD Instinct MI300X (amd-smi)", "ok"),
            ("nvidia-smi", "NVIDIA H200, 9.0\n", "1 x NVIDIA H200 (compute 9.0) (nvidia-smi)", "ok"),
        ],
    )
    def test_gpus(self, name: str, text: str, says: str, state: str, tmp_path: Path, here: Here) -> None:
        tool(tmp_path, name, text)
        found = self.look(here)["GPU"]
        assert (found["says"], found["state"]) == (says, state)

    def test_a_gpu_tool_that_fails(self, tmp_path: Path, here: Here) -> None:
        tool(tmp_path, "rocminfo", "ROCk module is NOT loaded, possibly no GPU devices", 1)
        found = self.look(here)["GPU"]
        assert (found["says"], found["state"]) == ("rocminfo shows none", "missing")
        assert "load the driver" in found["remedy"]

    def test_runtimes(self, tmp_path: Path, here: Here) -> None:
        tool(tmp_path, "docker", "", 1)
        found = self.look(here)["container runtime"]
        assert (found["says"], found["state"]) == ("docker does not answer", "missing")
        tool(tmp_path, "podman", "5.2.1\n")
        found = self.look(here)["container runtime"]
        assert (found["says"], found["state"]) == ("podman 5.2.1; docker does not answer", "ok")

    @pytest.mark.parametrize(
        ("source", "says", "state"),
        [
            (UNGUARDED, "0.1.20, unguarded: ", "note"),
            (GUARDED, "0.1.20, guarded: ", "ok"),
            (UNGUARDED.replace("empty", "zeros"), "0.1.20, not affected: ", "ok"),
            (UNGUARDED.replace(", splitk=1", ""), "0.1.20, not affected: ", "ok"),
            ("def other(): ...\n", "0.1.20, unknown: ", "ok"),
            ("def broken(:\n", "0.1.20, unknown: ", "ok"),
        ],
    )
    def test_sglang_and_the_guard_of_aiter(
        self, source: str, says: str, state: str, tmp_path: Path, here: Here
    ) -> None:
        python = make_python(tmp_path)
        add_aiter(python, source)
        found = self.look(here, "--python", str(python))
        assert found["sglang"]["says"] == f"0.5.21 in {python}"
        assert found["aiter"]["says"].startswith(says)
        assert found["aiter"]["state"] == state

    def test_in_an_image(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path)
        add_aiter(python, GUARDED)
        make_runtime(tmp_path, python)
        found = self.look(here, "--image", IMAGE)
        assert found["sglang"]["says"] == f"0.5.21 in {IMAGE}"
        assert found["aiter"]["says"].startswith("0.1.20, guarded")
        found = self.look(here, "--image", "no/such:image")
        assert found["sglang"]["remedy"] == "docker pull no/such:image"

    @pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
    def test_a_python_that_is_none(self, python: str, here: Here) -> None:
        found = self.look(here, "--python", python)["sglang"]
        assert found["state"] == "missing"
        assert found["remedy"] == "name another with --python"

    def test_a_model_in_the_cache(self, tmp_path: Path, here: Here) -> None:
        hub = tmp_path / ".cache" / "huggingface" / "hub"
        folder = hub / "models--Qwen--Qwen3.6-35B-A3B-FP8" / "snapshots" / "abc"
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        found = self.look(here)
        assert found["model"]["says"] == f"{folder} has no weights"
        assert found["model"]["remedy"] == "hf download Qwen/Qwen3.6-35B-A3B-FP8"
        assert found["tokenizer"]["state"] == "missing"
        with (folder / "model.safetensors").open("wb") as weights:
            weights.truncate(200_000_000)
        (folder / "tokenizer.json").touch()
        found = self.look(here)
        assert found["model"]["says"].endswith(f": 1 files, 0.2 GB, in {folder}")
        assert found["tokenizer"] == {
            "name": "tokenizer",
            "state": "ok",
            "says": f"{folder / 'tokenizer.json'}",
            "remedy": None,
        }

    def test_a_taken_port(self, here: Here) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            found = self.look(here, "--port", str(port))["port"]
        assert found["says"] == f"{port} is taken"
        assert f"fidelity check http://127.0.0.1:{port}" in found["remedy"]

    def test_no_port(self, here: Here) -> None:
        assert here("doctor", "--port", "70000").code == 2


def test_an_engine_that_does_not_start(monkeypatch: pytest.MonkeyPatch, here: Here) -> None:
    from fidelity.servers import embedded

    monkeypatch.setattr(embedded, "command", lambda *_: [sys.executable, "-S", "-c", "raise SystemExit(4)"])
    found = by_name(here("doctor", "--json").out)["embedded engine"]
    assert found["state"] == "missing"
    assert "ended with code 4" in found["says"]
