"""The command that runs the operator: by a Python of this machine, or inside an image."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fidelity
from fidelity.servers import container

PACKAGE = "/fidelity/package"
RUN = "/fidelity/run"
WORK, ANSWERS, LOG = "work.json", "answers.jsonl", "kernel.log"
MODULE = "fidelity.kernel"


def direct_line(python: str, folder: Path) -> list[str]:
    return [python, "-m", MODULE, str(folder / WORK), str(folder / ANSWERS)]


@contextmanager
def package_alone(folder: Path) -> Iterator[Path]:
    """A folder that holds this package and nothing else that is installed beside it, for another Python."""
    place = folder / "package"
    place.mkdir(exist_ok=True)
    link = place / "fidelity"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(fidelity.__file__).resolve().parent)
    try:
        yield place
    finally:
        link.unlink(missing_ok=True)
        place.rmdir()


def container_line(runtime: str, image: str, name: str, folder: Path) -> list[str]:
    """`RUNTIME run` with this package and the run's folder mounted; the image's own Python and torch are
    used."""
    package = Path(fidelity.__file__).resolve().parent
    words = [runtime, "run", "--rm", "--name", name, *container.gpu_flags()]
    words += [f"--volume={package}:{PACKAGE}/fidelity:ro", f"--volume={folder.resolve()}:{RUN}"]
    words += [f"--volume={container.kernel_caches()}:{container.CACHES}"]
    words += [
        f"--env=AITER_JIT_DIR={container.CACHES}/aiter",
        f"--env=TRITON_CACHE_DIR={container.CACHES}/triton",
    ]
    inside = shlex.join(["python3", "-m", MODULE, f"{RUN}/{WORK}", f"{RUN}/{ANSWERS}"])
    path = f'PYTHONPATH="{PACKAGE}${{PYTHONPATH:+:$PYTHONPATH}}"'
    return [*words, "--entrypoint", "/bin/sh", image, "-c", f"{path} exec {inside}"]
