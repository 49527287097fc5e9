"""The same server inside an image, by docker, podman or nerdctl."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fidelity.plan import Target
from fidelity.servers import launch
from fidelity.servers.guarded import Folders
from fidelity.servers.image import Image, ask
from fidelity.servers.launch import Additions
from fidelity.servers.port import port_for
from fidelity.servers.process import check_model, keep
from fidelity.servers.running import RunningServer

CACHES = "/fidelity/cache"
INSIDE = Folders(Path("/fidelity/guard"), Path("/fidelity/markers"))
"""Where a guard's folders are mounted."""
HUB = "/root/.cache/huggingface"
# https://docs.sglang.ai/platforms/amd_gpu.html; of --privileged only what the GPU needs
ROCM_FLAGS = (
    "--device=/dev/kfd",
    "--device=/dev/dri",
    "--group-add=video",
    "--ipc=host",
    "--shm-size=16G",
    "--cap-add=SYS_PTRACE",
    "--security-opt=seccomp=unconfined",
)
NVIDIA_FLAGS = ("--gpus=all", "--ipc=host", "--shm-size=16G")
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def container_name(run_id: str, arm: str) -> str:
    """A name that every runtime takes."""
    return "fidelity-" + re.sub(r"[^a-zA-Z0-9_.-]", "-", f"{run_id}-{arm}")


def launch_line(
    target: Target,
    runtime: str,
    image: Image,
    port: int,
    name: str,
    guard: Additions,
    here: Folders,
) -> list[str]:
    """The whole `RUNTIME run` command of one arm. Secrets are passed by name, never by value. Raises
    PlanError for a broken preset or a model folder that is not there."""
    chosen = launch.preset(target.model)
    check_model(chosen.model)
    model, mounts = chosen.model, [(kernel_caches(), CACHES, ""), (hub(), HUB, "")]
    folder = Path(model).expanduser().resolve()
    if folder.is_dir():
        model, mounts = str(folder), [*mounts, (folder, str(folder), ":ro")]
    mounts.append((here.markers, str(INSIDE.markers), ""))
    guarded = "PYTHONPATH" in guard.env
    if guarded:
        mounts.append((here.modules, str(INSIDE.modules), ":ro"))
    env = {
        "AITER_JIT_DIR": f"{CACHES}/aiter",
        "TRITON_CACHE_DIR": f"{CACHES}/triton",
        "HF_HOME": HUB,
        **chosen.env,
        **{key: value for key, value in guard.env.items() if key != "PYTHONPATH"},
    }
    words = [runtime, "run", "--rm", "--name", name, *gpu_flags(), f"--publish=127.0.0.1:{port}:{port}"]
    words += [f"--volume={place}:{inside}{mode}" for place, inside, mode in mounts]
    words += [f"--env={key}={value}" for key, value in env.items()]
    words += [f"--env={key}" for key in SECRETS if key in os.environ]
    start = image.sglang.start

    def help_text() -> str:
        return ask(
            runtime, "run", "--rm", *gpu_flags(), "--entrypoint", "python3", image.name, *start, "--help"
        ).stdout

    server = launch.command(
        ["python3", *start],
        model,
        {**chosen.flags, **guard.flags},
        port,
        version=image.sglang.version,
        help_text=help_text,
        user=target.flags,
        host="0.0.0.0",
    )
    # The image's own PYTHONPATH is kept: the guard's folder goes in front of it.
    path = f'PYTHONPATH="{INSIDE.modules}${{PYTHONPATH:+:$PYTHONPATH}}" ' if guarded else ""
    return [*words, "--entrypoint", "/bin/sh", image.name, "-c", f"{path}exec {shlex.join(server)}"]


@contextmanager
def container(
    target: Target, runtime: str, image: Image, guard: Additions, here: Folders, log: Path, name: str
) -> Iterator[RunningServer]:
    """Start the server in its image, yield it before it is ready, remove the container. Raises StartError,
    PlanError."""
    port = port_for(target.flags)
    words = launch_line(target, runtime, image, port, name, guard, here)
    for folder in (kernel_caches(), hub()):
        folder.mkdir(parents=True, exist_ok=True)
    with keep(words, {}, log, last=shlex.join([runtime, "rm", "--force", name])) as keeper:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=target.timeout) as client:
            yield RunningServer(
                url=url,
                owned=True,
                client=client,
                log=log,
                process=keeper,
                image=f"{image.name} ({image.digest})",
                markers=here.markers,
            )


def gpu_flags() -> tuple[str, ...]:
    """What gives a container the GPUs: ROCm's devices, except on a machine that has NVIDIA's tools only."""
    nvidia = shutil.which("nvidia-smi") is not None and not Path("/dev/kfd").exists()
    return NVIDIA_FLAGS if nvidia else ROCM_FLAGS


def kernel_caches() -> Path:
    """The folder of this machine that keeps compiled kernels between runs."""
    return Path.home() / ".cache" / "fidelity" / "kernels"


def hub() -> Path:
    """The Hugging Face home of this machine."""
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
