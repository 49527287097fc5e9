"""The launch line of an sglang server: a preset, the guard's additions and the user's own flags, by
version."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fidelity.errors import PlanError
from fidelity.guards.registry import version_numbers
from fidelity.paths import data_dir

ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "model": "model-path",
}
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
class Additions:
    """What an arm's guard adds to its server: flags under their newest names, and variables."""

    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """A command line, and what it adds to the environment."""

    argv: list[str]
    env: dict[str, str]

    def shell(self) -> str:
        """Both as one line to paste into a shell."""
        return " ".join(
            [*(f"{key}={shlex.quote(value)}" for key, value in self.env.items()), shlex.join(self.argv)]
        )


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


def given(name: str, user: Sequence[str]) -> str | None:
    """The value that the user's own flags give a flag, the last one counting; None where they do not."""
    value = None
    for at, word in enumerate(user):
        if word.startswith("--") and _name(word) == name:
            _, equals, after = word.partition("=")
            value = after if equals else user[at + 1] if at + 1 < len(user) else ""
    return value


def command(
    server: Sequence[str],
    model: str,
    flags: Mapping[str, Any],
    port: int,
    *,
    version: str | None,
    help_text: Callable[[], str],
    user: Sequence[str] = (),
    host: str = "127.0.0.1",
) -> list[str]:
    """The argv: `server` (how sglang is started), then flags and the address, then the user's own flags.

    A user's flag replaces one of the same name. `help_text` is asked only when the version does not tell
    which name a renamed flag has.
    """
    mine = {_name(word) for word in user if word.startswith("--")}
    words = list(server)
    for name, value in {"model-path": model, **flags, "host": host, "port": port}.items():
        if name in mine or value is False:
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
    numbers = version_numbers(version)
    # A build from a checkout without tags calls itself 0.0.0.
    if numbers is not None and any(numbers):
        return name if numbers >= since else before
    return name if f"--{name}" in help_text() else before


def _name(word: str) -> str:
    name = word.removeprefix("--").split("=", 1)[0]
    newest = {old: new for new, (_, old) in RENAMED.items()}
    return newest.get(name, ALIASES.get(name, name))
