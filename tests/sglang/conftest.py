"""A real sglang server on the CPU: installed once, started per model, its fault switched while it runs."""

import ctypes
import hashlib
import json
import os
import re
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
READY = "ready to roll"
START_SECONDS = 600
STOP_SECONDS = 20
PREFILL = re.compile(r"Prefill batch, #new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+)")


@dataclass(frozen=True)
class RealServer:
    """A running sglang: its output, the file its MoE layers obey, and what it was made of."""

    url: str
    log: Path
    fault_file: Path
    about: dict[str, str]

    def set_fault(self, mode: str) -> None:
        """off, nan, stale or zero, from the next forward on."""
        self.fault_file.write_text(mode, encoding="utf-8")

    def log_size(self) -> int:
        """Bytes logged so far: a mark for `prefills`."""
        return self.log.stat().st_size

    def prefills(self, mark: int) -> list[tuple[int, int, int]]:
        """(sequences, tokens computed, tokens from the cache) of each prefill after `mark`, in order."""
        lines = self.log.read_bytes()[mark:].decode(errors="replace")
        return [(int(a), int(b), int(c)) for a, b, c in PREFILL.findall(lines)]


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """The python of an environment with sglang: FIDELITY_SGLANG_PYTHON, or one installed here once.

    The place is FIDELITY_SGLANG_VENV, `.venv-sglang` in the repository by default.
    """
    given = os.environ.get("FIDELITY_SGLANG_PYTHON")
    if given:
        return Path(given)
    venv = Path(os.environ.get("FIDELITY_SGLANG_VENV", REPOSITORY / ".venv-sglang")).absolute()
    if not (venv / "complete").exists():
        subprocess.run([HERE / "install.sh", venv], check=True)
    return venv / "bin" / "python"


@pytest.fixture(scope="session")
def quiz_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded engine's trained weights as a Hugging Face folder."""
    given = os.environ.get("FIDELITY_SGLANG_QUIZ_MODEL")
    if given:
        return Path(given).absolute()
    folder = tmp_path_factory.mktemp("models") / "quiz"
    subprocess.run(
        [sys.executable, "-m", "fidelity", "serve", "--export", folder], check=True, cwd=REPOSITORY
    )
    return folder


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory, sglang_python: Path) -> Path:
    """The tiny random model, one token per byte."""
    folder = tmp_path_factory.mktemp("models") / "random"
    subprocess.run([sglang_python, HERE / "make_model.py", folder], check=True)
    return folder


@pytest.fixture(scope="class")
def quiz_server(
    sglang_python: Path, quiz_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealServer]:
    """The trained weights on a real sglang."""
    # float32 weights would be served as float16, and its kernels then disagree about the dtype
    with serving(sglang_python, quiz_model, tmp_path_factory.mktemp("quiz"), "--dtype", "bfloat16") as server:
        yield server


@pytest.fixture(scope="class")
def random_server(
    sglang_python: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealServer]:
    """The tiny random model on a real sglang."""
    with serving(sglang_python, random_model, tmp_path_factory.mktemp("random")) as server:
        yield server


@contextmanager
def serving(python: Path, model: Path, folder: Path, *flags: str) -> Iterator[RealServer]:
    """Start serve.sh in a process group of its own, wait until it is ready, and end the whole group."""
    port = _free_port()
    about = {"model": folder.name.rstrip("0123456789"), "flags": " ".join(flags), **_versions(python)}
    about["weights_sha256"] = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    server = RealServer(f"http://127.0.0.1:{port}", folder / "server.log", folder / "fault", about)
    server.set_fault("off")
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            [HERE / "serve.sh", python, model, str(port), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "FIDELITY_FAULT_FILE": str(server.fault_file)},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        _wait_until_ready(process, server.log)
        yield server
    finally:
        _end(process)


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _versions(python: Path) -> dict[str, str]:
    code = "import json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in %r}))"
    packages = ("sglang", "torch", "transformers")
    done = subprocess.run([python, "-c", code % (packages,)], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while READY not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(
                f"sglang did not start (exit status {process.poll()}):\n{text[-3000:]}", pytrace=False
            )
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    group = process.pid
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + STOP_SECONDS
        while _group_lives(process, group) and time.monotonic() < deadline:
            time.sleep(0.2)
    process.wait()


def _group_lives(process: subprocess.Popen[bytes], group: int) -> bool:
    process.poll()
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
