"""A local sglang server, started for one arm and ended with it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from fidelity.errors import StartError
from fidelity.plan import Target
from fidelity.servers import launch
from fidelity.servers.launch import Launch
from fidelity.servers.running import RunningServer, last_lines

WAYS_ON = (
    "install sglang in this environment or name one that has it with --python, start a container with "
    "--image, attach to a server that runs with --url http://HOST:PORT, or see the whole job without a GPU "
    "with --model embedded"
)
STOP_TIMEOUT = 40.0
# Without importing sglang itself, which takes long and may need the server's own environment.
_ASK = (
    "import importlib.metadata as m, importlib.util as u, pathlib as p\n"
    "(folder,) = u.find_spec('sglang').submodule_search_locations\n"
    "print(m.version('sglang'), (p.Path(folder) / 'launch_server.py').exists())"
)
_CAUSES = (
    ("out of memory", "lower --mem-fraction-static, or free the GPU: give flags for the server after `--`"),
    ("no such file or directory", "check the model path"),
    ("address already in use", "another process took the port: run again"),
    ("unrecognized arguments", "this version of sglang has no such flag: see its --help"),
)


def installed(target: Target) -> tuple[str, list[str]]:
    """sglang's version and how it is started. Raises StartError with the ways on where it is missing."""
    python = target.python or sys.executable
    try:
        asked = subprocess.run(
            [python, "-P", "-c", _ASK], capture_output=True, text=True, timeout=120, check=False
        )
    except OSError as exc:
        raise StartError(f"cannot run {python}: {exc.strerror}", WAYS_ON) from exc
    if asked.returncode:
        where = f"in {python}" if target.python else "here"
        raise StartError(
            f"cannot start a server for '{target.model}': sglang is not installed {where}", WAYS_ON
        )
    version, has_module = asked.stdout.split()
    module = "sglang.launch_server" if has_module == "True" else "sglang.cli.main"
    start = [python, "-m", module]
    return version, start if has_module == "True" else [*start, "serve"]


def launch_line(target: Target, port: int, guard: Launch) -> Launch:
    """The whole command for one arm. `guard` brings the guard's flags (as argv) and environment.

    Raises StartError where sglang is not installed, PlanError for a broken preset.
    """
    version, server = installed(target)
    chosen = launch.preset(target.model)

    def help_text() -> str:
        asked = subprocess.run([*server, "--help"], capture_output=True, text=True, timeout=300, check=False)
        return asked.stdout

    words = launch.command(
        server, chosen, port, version=version, help_text=help_text, user=[*guard.argv, *target.flags]
    )
    return Launch(words, {**chosen.env, **guard.env})


@contextmanager
def process(target: Target, guard: Launch, log: Path) -> Iterator[RunningServer]:
    """Start the server, yield it before it is ready, end its whole tree. Raises StartError."""
    port = free_port()
    line = launch_line(target, port, guard)
    with keep(line.argv, {**os.environ, **line.env}, log) as keeper:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=target.timeout) as client:
            yield RunningServer(url=url, owned=True, client=client, log=log, process=keeper)


@contextmanager
def keep(
    argv: list[str], env: Mapping[str, str], log: Path, last: str = ""
) -> "Iterator[subprocess.Popen[str]]":
    """Run a command under a keeper that ends its tree, then runs `last`, however this process ends."""
    keeper = [sys.executable, "-P", "-m", "fidelity.servers.keeper", "--finally", last, "--", *argv]
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            keeper, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, env=dict(env), text=True
        )
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(server: RunningServer, timeout: float) -> Iterator[str]:
    """Poll `/health_generate` until it answers 200, yielding each new last line of the log.

    Raises StartError when the process ends first or `timeout` seconds pass.
    """
    deadline = time.monotonic() + timeout
    said = ""
    while time.monotonic() < deadline:
        ended = server.died()
        if ended:
            raise StartError(ended, cause(server.log))
        if _healthy(server.client):
            return
        line = _last_line(server.log)
        if line and line != said:
            said = line
            yield line
        time.sleep(0.5)
    raise StartError(
        f"the server was not ready within {timeout:.0f} s{last_lines(server.log)}",
        "a first start can compile kernels for a long time: raise --start-timeout",
    )


def cause(log: Path | None) -> str | None:
    """What to do next, read off the log of a server that ended; None where nothing known is in it."""
    text = log.read_text(encoding="utf-8", errors="replace").lower() if log and log.exists() else ""
    return next((hint for words, hint in _CAUSES if words in text), None)


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health_generate", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def _last_line(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
