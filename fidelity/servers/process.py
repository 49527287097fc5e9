"""A local sglang server, started for one arm and ended with it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from fidelity.errors import PlanError, StartError
from fidelity.plan import Target
from fidelity.servers import launch
from fidelity.servers.launch import Additions, Launch
from fidelity.servers.port import port_for
from fidelity.servers.running import RunningServer

WAYS_ON = (
    "install sglang in this environment or name one that has it with --python, start a container with "
    "--image, attach to a server that runs with --url http://HOST:PORT, or see the whole job without a GPU "
    "with --model embedded"
)
STOP_TIMEOUT = 120.0
# A `sglang` folder where the command is run, such as a checkout of it, is not the installed package.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
MODULE = ("-m", "sglang.launch_server")
# Without importing sglang itself, which takes long and may need the server's own environment.
ASK = """
import importlib.metadata, importlib.util, json, pathlib
spec = importlib.util.find_spec("sglang")
folder = pathlib.Path(list(spec.submodule_search_locations)[0])
module = (folder / "launch_server.py").exists()
print(json.dumps({"version": importlib.metadata.version("sglang"), "module": module}))
"""


@dataclass(frozen=True)
class Sglang:
    """An installed sglang: its version, and what comes after `python` to start a server."""

    version: str
    start: tuple[str, ...]


def read_answer(text: str) -> Sglang:
    """What the script ASK printed, other lines before it ignored. Raises ValueError."""
    lines = text.strip().splitlines()
    try:
        said = json.loads(lines[-1])
        start = MODULE if said["module"] else ("-m", "sglang.cli.main", "serve")
        return Sglang(str(said["version"]), start)
    except (LookupError, TypeError) as exc:
        raise ValueError(f"no version in {text[-300:]!r}") from exc


def installed(target: Target) -> Sglang:
    """The sglang of the target's Python. Raises StartError with the ways on where it is missing."""
    python = _python(target)
    try:
        asked = subprocess.run(
            [python, "-c", ASK],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **SAFE_PATH},
        )
    except OSError as exc:
        raise StartError(f"cannot run {python}: {exc.strerror}", WAYS_ON) from exc
    except subprocess.TimeoutExpired as exc:
        raise StartError(f"{python} did not answer within 120 s", WAYS_ON) from exc
    try:
        if asked.returncode == 0:
            return read_answer(asked.stdout)
    except ValueError:
        pass
    where = f"in {python}" if target.python else "here"
    raise StartError(f"cannot start a server for '{target.model}': sglang is not installed {where}", WAYS_ON)


def launch_line(target: Target, found: Sglang, port: int, guard: Additions) -> Launch:
    """The whole command for one arm. Raises PlanError for a broken preset or a model folder that is not
    there."""
    chosen = launch.preset(target.model)
    check_model(chosen.model)
    server = [_python(target), *found.start]

    def help_text() -> str:
        env = {**os.environ, **SAFE_PATH, **chosen.env}
        asked = subprocess.run(
            [*server, "--help"], capture_output=True, text=True, timeout=300, check=False, env=env
        )
        return asked.stdout

    words = launch.command(
        server,
        chosen.model,
        {**chosen.flags, **guard.flags},
        port,
        version=found.version,
        help_text=help_text,
        user=target.flags,
    )
    return Launch(words, {**SAFE_PATH, **chosen.env, **guard.env})


@contextmanager
def process(
    target: Target, found: Sglang, guard: Additions, log: Path, markers: Path
) -> Iterator[RunningServer]:
    """Start the server, yield it before it is ready, end its whole tree. Raises StartError, PlanError."""
    port = port_for(target.flags)
    line = launch_line(target, found, port, guard)
    with keep(line.argv, line.env, log) as keeper:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=target.timeout) as client:
            yield RunningServer(url=url, owned=True, client=client, log=log, process=keeper, markers=markers)


@contextmanager
def keep(
    argv: list[str], env: Mapping[str, str], log: Path, last: str = ""
) -> "Iterator[subprocess.Popen[str]]":
    """Run a command with `env` added to its environment, under a keeper that ends its tree, then runs `last`,
    however this process ends."""
    settings = [word for name, value in env.items() for word in ("--set", f"{name}={value}")]
    keeper = [sys.executable, "-P", "-m", "fidelity.servers.keeper", "--finally", last, *settings, "--"]
    with log.open("w", encoding="utf-8") as out:
        # In a session of its own: a Ctrl-C or a kill of this process's group is not the server's end.
        process = subprocess.Popen(
            [*keeper, *argv],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
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


def check_model(model: str) -> None:
    """Raises PlanError for what is written as a path and is not a folder with a model."""
    path = Path(model).expanduser()
    looks_like_a_path = model.startswith(("/", "./", "../", "~")) or model.count("/") > 1
    if path.is_dir() and not (path / "config.json").exists():
        raise PlanError(f"the folder {model} holds no model: it has no config.json", "check --model")
    if looks_like_a_path and not path.is_dir():
        raise PlanError(
            f"there is no model folder {model}", "check --model: a folder, a hub id, or a preset's name"
        )


def _python(target: Target) -> str:
    return target.python or sys.executable
