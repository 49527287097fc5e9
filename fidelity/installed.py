"""What sglang and aiter another Python has, read off its files: neither is imported, which would take long,
compile kernels or need a GPU."""

import ast
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from fidelity.errors import StartError
from fidelity.servers.process import SAFE_PATH

FUNCTION = "ck_moe_stage1"
_SECONDS = 600.0
_LOOK = """
import importlib.metadata, importlib.util, json, pathlib
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
def source(name, file):
    spec = importlib.util.find_spec(name)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = pathlib.Path(folder) / file
        if path.exists():
            return path.read_text(errors="replace")
print(json.dumps({
    "sglang": version("sglang"),
    "aiter": version("amd-aiter", "aiter"),
    "fused_moe": source("aiter", "fused_moe.py"),
}))
"""


@dataclass(frozen=True)
class Packages:
    """Versions, None for what is not installed, and the source text of `aiter.fused_moe`."""

    sglang: str | None
    aiter: str | None
    fused_moe: str | None


def look(python: Sequence[str]) -> Packages:
    """What that Python has; `python` is the command that starts it. Raises StartError."""
    said = ""
    try:
        done = subprocess.run(
            [*python, "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, **SAFE_PATH},
        )
        said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        data = json.loads(done.stdout.strip().splitlines()[-1])
        return Packages(data["sglang"], data["aiter"], data["fused_moe"])
    except OSError as exc:
        raise StartError(f"cannot run {python[0]}: {exc.strerror}", "name another with --python") from exc
    except (subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as exc:
        about = f": {said}" if said else ""
        raise StartError(f"{' '.join(python)} runs no Python{about}", "name another with --python") from exc


def aiter_guard(source: str) -> tuple[str, str]:
    """How a version of `aiter.fused_moe` treats a split that owns one tile of K: (state, what says so).

    States: guarded, unguarded, not affected, unknown. Read off the text of `ck_moe_stage1`: the guard of
    aiter #3997 computes tiles per split there before it splits, #4394 took it out.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "unknown", "fused_moe.py cannot be read as Python"
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == FUNCTION
    ]
    if not functions:
        return "unknown", f"fused_moe.py has no {FUNCTION}"
    function = functions[-1]
    arguments = function.args
    names = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    if "splitk" not in names:
        return "not affected", f"{FUNCTION} has no split of K"
    if any(_computes_with_split(node) for node in ast.walk(function)):
        return "guarded", f"{FUNCTION} looks at the tiles per split (aiter #3997)"
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    called = {one.attr for one in calls if isinstance(one, ast.Attribute)}
    if called & {"zeros", "zeros_like"} and not called & {"empty", "empty_like"}:
        return "not affected", f"{FUNCTION} clears the buffer that splits add into"
    return "unguarded", f"{FUNCTION} splits K whatever a split owns (aiter #4032)"


def _computes_with_split(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and any(
        isinstance(one, ast.Name) and one.id == "splitk" for one in ast.walk(node)
    )
