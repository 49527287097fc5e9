"""The launch line of an sglang server: a preset, the guard's additions and the user's own flags, by
version."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fidelity.errors import PlanError
from fidelity.paths import data_dir

ALIASES = {"tp": "tp-size", "dp": "dp-size", "pp": "pp-size", "model": "model-path"}
RENAMED = {"mamba-radix-cache-strategy": ((0, 5, 14), "mamba-scheduler-strategy")}
"""Flag -> (the version that brought it, its name before)."""


@dataclass(frozen=True)
class Preset:
    """How a model is served by default. `flags` use the newest names; True stands for a flag without a
    value."""

    model: str
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """A command line, and what it adds to the environment."""

    argv: list[str]
    env: dict[str, str]


def preset(model: str) -> Preset:
    """The shipped preset of that name, else an empty one for the model as named (a folder or a hub id).

    Raises PlanError for a preset file that cannot be read.
    """
    path = data_dir("configs") / "models" / f"{model.rsplit('/', 1)[-1]}.yaml"
    if Path(model).exists() or not path.exists():
        return Preset(model)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        serve = data.get("serve", {})
        return Preset(data["model"], dict(serve.get("flags", {})), dict(serve.get("env", {})))
    except (AttributeError, KeyError, TypeError) as exc:
        raise PlanError(f"{path} is no model preset: {exc}") from exc


def version_tuple(version: str | None) -> tuple[int, ...] | None:
    """(0, 5, 21) for "0.5.21.post1"; None where no number can be read."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version or "")
    return tuple(map(int, found.groups())) if found else None


def command(
    server: Sequence[str],
    chosen: Preset,
    port: int,
    *,
    version: str | None,
    help_text: Callable[[], str],
    user: Sequence[str] = (),
    host: str = "127.0.0.1",
) -> list[str]:
    """The argv: `server` (how sglang is started), then preset and address flags, then the user's own.

    A user's flag replaces the preset's of the same name. `help_text` is asked only when the version does not
    tell which name a renamed flag has.
    """
    given = {_name(word) for word in user if word.startswith("--")}
    flags = {"model-path": chosen.model, **chosen.flags, "host": host, "port": port}
    words = list(server)
    for name, value in flags.items():
        if name in given:
            continue
        words.append("--" + flag_name(name, version, help_text))
        if value is not True:
            words.append(str(value))
    return [*words, *user]


def flag_name(name: str, version: str | None, help_text: Callable[[], str]) -> str:
    """The name that `version` has for a flag."""
    if name not in RENAMED:
        return name
    since, before = RENAMED[name]
    numbers = version_tuple(version)
    if numbers is not None:
        return name if numbers >= since else before
    return name if f"--{name}" in help_text() else before


def _name(word: str) -> str:
    name = word.removeprefix("--").split("=", 1)[0]
    newest = {old: new for new, (_, old) in RENAMED.items()}
    return newest.get(name, ALIASES.get(name, name))
