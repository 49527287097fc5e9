"""Container runtimes and what they say of an image."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass

from fidelity.errors import StartError
from fidelity.servers.process import ASK, Sglang, read_answer

RUNTIMES = ("docker", "podman", "nerdctl")
ASK_TIMEOUT = 600.0


@dataclass(frozen=True)
class Image:
    """An image as the runtime knows it: `digest` is its repository digest, else its id."""

    name: str
    digest: str
    sglang: Sglang


def find_runtime(wanted: str | None) -> str:
    """The container runtime to use. Raises StartError when none, or not the wanted one, is on PATH."""
    for name in (wanted,) if wanted else RUNTIMES:
        if shutil.which(name):
            return name
    what = (
        f"the container runtime '{wanted}' is not on PATH"
        if wanted
        else "no container runtime (docker, podman, nerdctl) is on PATH"
    )
    raise StartError(
        what, "install one, name it with --runtime, or run inside the image and leave out --image"
    )


def inspect(runtime: str, name: str) -> Image:
    """The image's digest and sglang, pulled first where it is not here. Raises StartError."""
    digest = local_digest(runtime, name)
    if digest is None:
        # Its progress belongs on the screen, and not in what the command prints for others to read.
        pulled = subprocess.run([runtime, "pull", name], stdout=2, check=False)
        digest = local_digest(runtime, name)
        if pulled.returncode or digest is None:
            raise StartError(
                f"the image {name} is not here and {runtime} could not pull it{_complaint(runtime, name)}",
                "check the image's name, your login and the runtime's daemon: see `fidelity doctor`",
            )
    answer = ask(runtime, "run", "--rm", "--entrypoint", "python3", name, "-c", ASK)
    try:
        if answer.returncode:
            raise ValueError
        return Image(name, digest, read_answer(answer.stdout))
    except ValueError:
        said = answer.stderr.strip().splitlines()
        raise StartError(
            f"the image {name} has no sglang that its python3 finds{': ' + said[-1][-300:] if said else ''}",
            "give an sglang image, such as lmsysorg/sglang or a ROCm build of it",
        ) from None


def local_digest(runtime: str, name: str) -> str | None:
    """The digest of an image that is here, None for one that is not. Raises StartError."""
    found = ask(runtime, "image", "inspect", name)
    if found.returncode:
        return None
    try:
        data = json.loads(found.stdout)[0]
        return str((data.get("RepoDigests") or [data.get("Id") or "unknown"])[0])
    except (ValueError, LookupError, AttributeError) as exc:
        raise StartError(f"{runtime} image inspect {name} printed no image") from exc


def version_in(name: str) -> str:
    """The sglang version that an image's tag tells, else "0.0.0", which stands for an unknown one."""
    found = re.search(r":v?(\d+\.\d+\.\d+)", name)
    return found.group(1) if found else "0.0.0"


def ask(runtime: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the runtime and keep what it says. Raises StartError where it cannot run or does not end."""
    try:
        return subprocess.run(
            [runtime, *words], capture_output=True, text=True, timeout=ASK_TIMEOUT, check=False
        )
    except OSError as exc:
        raise StartError(f"cannot run {runtime}: {exc.strerror}") from exc
    except subprocess.TimeoutExpired as exc:
        raise StartError(f"{runtime} {words[0]} did not end within {ASK_TIMEOUT:.0f} s") from exc


def _complaint(runtime: str, name: str) -> str:
    said = ask(runtime, "image", "inspect", name).stderr.strip().splitlines()
    return f": {said[-1][-300:]}" if said else ""
