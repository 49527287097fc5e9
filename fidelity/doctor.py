"""What this machine can run: each thing looked for, what was found, and the remedy where it is missing."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from fidelity import __version__
from fidelity.errors import FidelityError
from fidelity.installed import Packages, aiter_guard, look
from fidelity.plan import Arm, Target
from fidelity.servers import launch
from fidelity.servers.container import hub
from fidelity.servers.image import RUNTIMES, find_runtime, local_digest
from fidelity.servers.port import is_free

State = Literal["ok", "missing", "note"]
DEFAULT_MODEL = "Qwen3.6-35B-A3B-FP8"
AFFECTED = ("gfx942", "gfx950")
"""The architectures whose block-scaled fp8 MoE layers aiter computes."""
_SECONDS = 60.0


@dataclass(frozen=True)
class Finding:
    """One thing looked for. `remedy` says what to do, None where nothing needs to be done."""

    name: str
    state: State
    says: str
    remedy: str | None = None


def examine(model: str, python: str | None, image: str | None, port: int) -> Iterator[Finding]:
    """Look for everything, one finding after another; nothing found is changed, downloaded or kept running.

    `python` is the interpreter that should have sglang, `image` a container image to look into instead.
    """
    yield Finding(
        "fidelity", "ok", f"{__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs"
    )
    yield embedded_engine()
    yield gpu()
    yield runtimes()
    yield from packages(python, image)
    yield from model_files(model)
    yield free(port)


def embedded_engine() -> Finding:
    """Does the embedded engine start and answer?"""
    from fidelity.engines import sglang
    from fidelity.servers.embedded import embedded

    try:
        with TemporaryDirectory() as folder:
            target = Target(fault="none")
            with embedded(target, Arm(name="doctor"), Path(folder) / "log", seed=0) as server:
                facts = sglang.facts(server.client)
    except (FidelityError, OSError) as exc:
        return Finding("embedded engine", "missing", str(exc), "install fidelity again")
    return Finding(
        "embedded engine", "ok", f"profile {facts.model} answers: fidelity run --model embedded works here"
    )


def gpu() -> Finding:
    """GPUs and their architecture, by the vendor's own tools."""
    for tool, words, read in _GPU_TOOLS:
        said = _say(tool, *words)
        found = read(said) if said else ""
        if not found:
            continue
        known = tool == "nvidia-smi" or any(arch in found for arch in AFFECTED)
        remedy = None if known else f"aiter's block-scaled fp8 MoE is for {' and '.join(AFFECTED)}"
        return Finding("GPU", "ok" if known else "note", f"{found} ({tool})", remedy)
    have = [tool for tool, *_ in _GPU_TOOLS if shutil.which(tool)]
    if have:
        says = f"{', '.join(dict.fromkeys(have))} shows none"
        return Finding("GPU", "missing", says, "load the driver, and check that your user may use the device")
    return Finding(
        "GPU",
        "note",
        "none: no rocminfo, amd-smi or nvidia-smi on PATH",
        "a served model needs one; --model embedded and fidelity check URL do not",
    )


def runtimes() -> Finding:
    """Container runtimes, and whether their daemon answers."""
    working: list[str] = []
    broken: list[str] = []
    for name in RUNTIMES:
        if shutil.which(name):
            version = _say(name, "version", "--format", "{{.Server.Version}}") or _say(name, "version")
            first = (version or "").strip().splitlines()[:1]
            (working if first else broken).append(f"{name} {first[0]}" if first else name)
    if working:
        also = f"; {', '.join(broken)} does not answer" if broken else ""
        return Finding("container runtime", "ok", ", ".join(working) + also)
    if broken:
        says = f"{', '.join(broken)} does not answer"
        remedy = "start its daemon, and check that your user may use it"
        return Finding("container runtime", "missing", says, remedy)
    return Finding(
        "container runtime",
        "note",
        "none: no docker, podman or nerdctl on PATH",
        "only --image needs one",
    )


def packages(python: str | None, image: str | None) -> Iterator[Finding]:
    """sglang, and aiter with the state of its split-K guard, in a Python or an image."""
    where: str = image or python or sys.executable
    try:
        found = _look(python, image)
    except FidelityError as exc:
        yield Finding("sglang", "missing", exc.message, exc.hint)
        return
    if found.sglang:
        yield Finding("sglang", "ok", f"{found.sglang} in {where}")
    else:
        remedy = "install it there, name another with --python or --image, or use --url or --model embedded"
        yield Finding("sglang", "missing", f"none in {where}", remedy)
    if not found.fused_moe:
        says = f"{found.aiter} without fused_moe.py" if found.aiter else f"none in {where}"
        yield Finding("aiter", "note", says, "only ROCm servers use it")
        return
    state, about = aiter_guard(found.fused_moe)
    says = f"{found.aiter or 'unknown'}, {state}: {about}"
    if state == "unguarded":
        yield Finding("aiter", "note", says, "run with --guard none --guard splitk to see both")
    else:
        yield Finding("aiter", "ok", says)


def model_files(model: str) -> Iterator[Finding]:
    """The model's weights and tokenizer: in a folder, or in the hub's cache."""
    try:
        wanted = launch.preset(model).model
    except FidelityError as exc:
        yield Finding("model", "missing", exc.message, exc.hint)
        return
    folder = _snapshot(wanted)
    download = f"hf download {wanted}"
    if folder is None:
        yield Finding("model", "note", f"{wanted} is not on this machine", f"{download}, or name a folder")
        yield Finding("tokenizer", "note", "none here; a server's own /tokenize is used", None)
        return
    weights = [path for path in folder.glob("*.safetensors") if path.exists()]
    size = sum(path.stat().st_size for path in weights) / 1e9
    if weights:
        yield Finding("model", "ok", f"{wanted}: {len(weights)} files, {size:.1f} GB, in {folder}")
    else:
        yield Finding("model", "missing", f"{folder} has no weights", download)
    names = ("tokenizer.json", "vocab.json", "tokenizer.model")
    tokenizer = next((name for name in names if (folder / name).exists()), None)
    if tokenizer:
        yield Finding("tokenizer", "ok", f"{folder / tokenizer}")
    else:
        yield Finding("tokenizer", "missing", f"{folder} has none of {', '.join(names)}", download)


def free(port: int) -> Finding:
    """Is the port that sglang would take by default free?"""
    if is_free(port):
        return Finding("port", "ok", f"{port} is free")
    return Finding(
        "port",
        "note",
        f"{port} is taken",
        f"a started server gets a free one; test what runs there: fidelity check http://127.0.0.1:{port}",
    )


def _look(python: str | None, image: str | None) -> Packages:
    if image is None:
        return look([python or sys.executable])
    runtime = find_runtime(None)
    if local_digest(runtime, image) is None:
        raise FidelityError(f"the image {image} is not on this machine", f"{runtime} pull {image}")
    return look([runtime, "run", "--rm", "--entrypoint", "python3", image])


def _snapshot(model: str) -> Path | None:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    cache = Path(os.environ.get("HF_HUB_CACHE") or hub() / "hub")
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    complete = [one for one in snapshots.glob("*") if (one / "config.json").exists()]
    return max(complete, key=lambda one: one.stat().st_mtime, default=None)


def _say(tool: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            [tool, *words], capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _counted(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _rocminfo(text: str) -> str:
    agents = re.findall(r"^\s*Name:\s+(gfx\w+)\s*$(?:\n.*?)*?^\s*Marketing Name:[ \t]*(.*)$", text, re.M)
    return _counted([f"{arch} {name.strip()}".strip() for arch, name in agents])


def _amd_smi(text: str) -> str:
    arches = re.findall(r"TARGET_GRAPHICS_VERSION:\s*(gfx\w+)", text)
    names = re.findall(r"MARKET_NAME:[ \t]*(.+)", text)
    if arches and len(arches) == len(names):
        return _counted([f"{arch} {name.strip()}" for arch, name in zip(arches, names, strict=True)])
    return _counted(arches or [name.strip() for name in names])


def _nvidia_smi(text: str) -> str:
    lines = [line.split(",") for line in text.strip().splitlines() if line.count(",") == 1]
    return _counted([f"{name.strip()} (compute {version.strip()})" for name, version in lines])


_GPU_TOOLS: tuple[tuple[str, tuple[str, ...], Callable[[str], str]], ...] = (
    ("rocminfo", (), _rocminfo),
    ("amd-smi", ("static", "--asic"), _amd_smi),
    ("nvidia-smi", ("--query-gpu=name,compute_cap", "--format=csv,noheader"), _nvidia_smi),
)
