"""The same server inside an image, by docker, podman or nerdctl."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from fidelity.errors import StartError
from fidelity.plan import Target
from fidelity.servers import launch
from fidelity.servers.launch import Launch
from fidelity.servers.process import free_port, keep
from fidelity.servers.running import RunningServer

RUNTIMES = ("docker", "podman", "nerdctl")
CACHES = "/fidelity/cache"
GUARD = "/fidelity/guard"
MARKERS = "/fidelity/markers"
ROCM_FLAGS = (
    "--device=/dev/kfd",
    "--device=/dev/dri",
    "--group-add=video",
    "--ipc=host",
    "--shm-size=16G",
    "--cap-add=SYS_PTRACE",
    "--security-opt=seccomp=unconfined",
)
_VERSION = "import importlib.metadata as m; print(m.version('sglang'))"


@dataclass(frozen=True)
class Image:
    """An image as the runtime knows it: `digest` is its repository digest, else its id."""

    name: str
    digest: str
    sglang: str


@dataclass(frozen=True)
class GuardFolders:
    """Host folders of a guard: its modules, and the private place where its processes leave markers."""

    modules: Path
    markers: Path


def find_runtime(wanted: str | None) -> str:
    """The container runtime to use. Raises StartError when none, or not the wanted one, is on PATH."""
    for name in (wanted,) if wanted else RUNTIMES:
        if name and shutil.which(name):
            return name
    what = f"the container runtime '{wanted}'" if wanted else "no container runtime (docker, podman, nerdctl)"
    raise StartError(
        f"{what} is not on PATH" if wanted else f"{what} is on PATH",
        "install one, name it with --runtime, or run inside the image and leave out --image",
    )


def inspect(runtime: str, name: str) -> Image:
    """The image's digest and sglang version, pulled first where it is not here. Raises StartError."""
    found = _ask(runtime, "image", "inspect", name)
    if found.returncode:
        pulled = subprocess.run([runtime, "pull", name], check=False)
        found = _ask(runtime, "image", "inspect", name)
        if pulled.returncode or found.returncode:
            raise StartError(
                f"the image {name} is not here and could not be pulled", "check its name and your login"
            )
    data = json.loads(found.stdout)[0]
    digest = (data.get("RepoDigests") or [data.get("Id", "unknown")])[0]
    asked = _ask(runtime, "run", "--rm", "--entrypoint", "python3", name, "-c", _VERSION)
    if asked.returncode:
        raise StartError(
            f"the image {name} has no sglang: {asked.stderr.strip()[-300:]}", "give an sglang image"
        )
    return Image(name, digest, asked.stdout.strip())


def launch_line(
    target: Target,
    runtime: str,
    image: Image,
    port: int,
    name: str,
    guard: Launch,
    folders: GuardFolders | None,
) -> list[str]:
    """The whole `RUNTIME run` command of one arm. Secrets are passed by name, never by value."""
    chosen = launch.preset(target.model)
    model = Path(target.model)
    caches = Path.home() / ".cache" / "fidelity"
    mounts = [(str(caches / "kernels"), CACHES, ""), (str(_hub()), "/root/.cache/huggingface", "")]
    if model.exists():
        mounts.append((str(model.resolve()), str(model.resolve()), ":ro"))
        chosen = launch.Preset(str(model.resolve()), chosen.flags, chosen.env)
    if folders is not None:
        mounts += [(str(folders.modules), GUARD, ":ro"), (str(folders.markers), MARKERS, "")]
    env = {
        "AITER_JIT_DIR": f"{CACHES}/aiter",
        "TRITON_CACHE_DIR": f"{CACHES}/triton",
        **chosen.env,
        **{key: value for key, value in guard.env.items() if key != "PYTHONPATH"},
    }
    words = [runtime, "run", "--rm", "--name", name, *ROCM_FLAGS, f"--publish=127.0.0.1:{port}:{port}"]
    words += [f"--volume={host}:{inside}{mode}" for host, inside, mode in mounts]
    words += [f"--env={key}={value}" for key, value in env.items()]
    words += [f"--env={key}" for key in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if key in os.environ]
    server = launch.command(
        ["python3", "-m", "sglang.launch_server"],
        chosen,
        port,
        version=image.sglang,
        help_text=lambda: "",
        user=[*guard.argv, *target.flags],
        host="0.0.0.0",
    )
    # The image's own PYTHONPATH is kept: the guard's folder goes in front of it.
    path = f'PYTHONPATH="{GUARD}${{PYTHONPATH:+:$PYTHONPATH}}" ' if folders is not None else ""
    return [*words, "--entrypoint", "/bin/sh", image.name, "-c", f"{path}exec {shlex.join(server)}"]


@contextmanager
def container(
    target: Target, guard: Launch, folders: GuardFolders | None, log: Path, name: str
) -> Iterator[RunningServer]:
    """Start the server in its image, yield it before it is ready, remove the container. Raises StartError."""
    if target.image is None:
        raise StartError("no image is named", "give --image NAME")
    runtime = find_runtime(target.runtime)
    image = inspect(runtime, target.image)
    port = free_port()
    for folder in (Path.home() / ".cache" / "fidelity" / "kernels", _hub()):
        folder.mkdir(parents=True, exist_ok=True)
    words = launch_line(target, runtime, image, port, name, guard, folders)
    with keep(words, os.environ, log, last=shlex.join([runtime, "rm", "--force", name])) as keeper:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=target.timeout) as client:
            yield RunningServer(
                url=url,
                owned=True,
                client=client,
                log=log,
                process=keeper,
                image=f"{image.name} ({image.digest})",
            )


def _ask(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def _hub() -> Path:
    return Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
