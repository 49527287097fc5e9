"""An environment with a stand-in for sglang, and container runtimes that run it."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent / "standins"
SECRET = "hf_not-a-real-token"
DIGEST = "lmsysorg/sglang@sha256:" + "a" * 64
IMAGE = "lmsysorg/sglang:v0.5.21-rocm724-mi35x"

# Importing the real one takes long and may need a GPU: only its own processes may.
NOT_IMPORTED = """
import sys
line = " ".join(sys.orig_argv)
if "sglang.launch_server" not in line and "multiprocessing" not in line:
    raise RuntimeError("sglang was imported to look at it")
"""


def make_python(folder: Path, version: str = "0.5.21", *, module: bool = True, **fake: Any) -> Path:
    """A python whose sglang is a stand-in of that version; `fake` says what goes wrong with it."""
    site = folder / f"site-{version}"
    package = site / "sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(NOT_IMPORTED)
    if module:
        shutil.copyfile(HERE / "launch_server.py", package / "launch_server.py")
    about = site / f"sglang-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    settings = json.dumps({"said": str(folder), "records": str(folder / "run/observations.jsonl"), **fake})
    path = folder / "python-of-sglang"
    path.write_text(
        f"#!/bin/sh\nexport FAKE='{settings}'\n"
        f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}"\nexec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def make_model(folder: Path) -> Path:
    """A folder that looks like a model's; the stand-in serves its own weights."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "qwen3_next"}')
    return model


def make_runtime(folder: Path, python: Path | None, name: str = "docker", *, here: bool = True) -> Path:
    """A folder for PATH with a container runtime that knows one image, `python` being its python3."""
    state = folder / "runtime"
    state.mkdir(exist_ok=True)
    if here:
        (state / "pulled").touch()
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    source = (HERE / "runtime.py").read_text()
    settings = {"state": str(state), "python": str(python) if python else None, "image": IMAGE}
    settings["digest"] = DIGEST
    path.write_text(f"#!{sys.executable}\nSETTINGS = {settings!r}\n{source}")
    path.chmod(0o755)
    return path.parent


def calls(folder: Path) -> list[list[str]]:
    """What the runtime of that folder was called with."""
    lines = (folder / "runtime" / "calls.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def said(folder: Path) -> dict[str, Any]:
    """What the only server started from that folder says it was started with."""
    (path,) = folder.glob("said-*.json")
    return json.loads(path.read_text())


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process with the stand-in's settings for that folder in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get("FAKE", ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def all_gone(folder: Path, seconds: float = 15) -> bool:
    """Has every process of the stand-in ended?"""
    deadline = time.monotonic() + seconds
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.2)
    return not left


def wait_for(path: Path, count: int, process: "subprocess.Popen[str]", seconds: float = 90) -> None:
    """Until `path` has `count` lines."""
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"fewer than {count} lines in {path}"
        time.sleep(0.02)
