"""The guards by name: what each does, where it works, how it is applied and how it proves itself."""

import re
from dataclasses import dataclass
from typing import Literal

from fidelity.errors import PlanError, did_you_mean
from fidelity.guards.inserver.environment import VARIABLES

Applied = Literal["nothing", "in-server", "environment", "flags"]


@dataclass(frozen=True)
class Guard:
    """`min_tail` is the fewest prompt tokens (>= 1) that a re-send recomputes under this guard. `since` is
    the first sglang release it fits, `before` what is wrong with older ones. `flags` have the newest names,
    without dashes. `reported` are keys of /server_info (any of the names) and what they must say."""

    name: str
    about: str
    applied: Applied
    proof: str
    min_tail: int = 1
    embedded: bool = False
    since: tuple[int, ...] = (0, 5, 9)
    before: str = "nothing older was looked at"
    environment: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    reported: tuple[tuple[tuple[str, ...], str], ...] = ()

    @property
    def in_processes(self) -> bool:
        """Does it prove itself by a marker from every scheduler process?"""
        return self.applied in ("in-server", "environment")


_WRAP = "a marker from each scheduler process: what is wrapped, its source hash, calls seen and lowered"
_WITNESS = "a marker from each scheduler process: the variable as that process has it"
_PLUGINS = "sglang has no plugins yet, so its processes cannot tell what they were given"
_STRATEGY = ("mamba_radix_cache_strategy", "mamba_scheduler_strategy")


def _environment(name: str, about: str) -> Guard:
    variables = tuple(VARIABLES[name].items())
    return Guard(
        name, about, "environment", _WITNESS, since=(0, 5, 13), before=_PLUGINS, environment=variables
    )


GUARDS = {
    guard.name: guard
    for guard in (
        Guard("none", "the server as it is", "nothing", "no marker from any process", embedded=True),
        Guard(
            "splitk",
            "lower the split of K until every split owns at least two K tiles",
            "in-server",
            _WRAP,
            embedded=True,
        ),
        Guard("unsplit", "never split K", "in-server", _WRAP, embedded=True),
        Guard(
            "block-m32",
            "sort tokens into blocks of 32 rows, whose K tiles are half as deep",
            "in-server",
            _WRAP,
        ),
        Guard(
            "retreat",
            "never leave a one-token tail: resume one checkpoint earlier",
            "in-server",
            _WRAP,
            min_tail=2,
            embedded=True,
        ),
        _environment("ksplit1", "aiter never splits K (AITER_KSPLIT=1)"),
        _environment("no-aiter", "sglang without aiter (SGLANG_USE_AITER=0)"),
        Guard(
            "triton-moe",
            "the MoE layers on Triton instead of aiter",
            "flags",
            "what /server_info says of moe_runner_backend",
            flags=(("moe-runner-backend", "triton"),),
            reported=((("moe_runner_backend",), "triton"),),
        ),
        Guard(
            "no-buffer",
            "the strategy no_buffer, which keeps no checkpoint for a re-send",
            "flags",
            "what /server_info says of the strategy",
            flags=(("mamba-radix-cache-strategy", "no_buffer"), ("page-size", "1")),
            reported=((_STRATEGY, "no_buffer"),),
        ),
    )
}


def guard(name: str) -> Guard:
    """The guard of that name. Raises PlanError with the nearest known one."""
    if name not in GUARDS:
        raise PlanError(f"there is no guard '{name}'", did_you_mean(name, GUARDS))
    return GUARDS[name]


def check_fits(name: str, target_kind: str, sglang_version: str | None = None) -> Guard:
    """The guard, if a target of this kind (embedded, attach, process, container) can have it; an unknown
    version fits. Raises PlanError with the reason and the way on."""
    found = guard(name)
    if name == "none":
        return found
    if target_kind == "attach":
        raise PlanError(
            f"guard '{name}' cannot be applied to a running server from outside",
            "let fidelity start the server, or apply it yourself and check that URL without --guard",
        )
    if target_kind == "embedded":
        if not found.embedded:
            known = ", ".join(sorted(other.name for other in GUARDS.values() if other.embedded))
            way = "give --strategy no_buffer instead; " if name == "no-buffer" else ""
            raise PlanError(
                f"the embedded engine has no guard '{name}': it is for a real server", f"{way}it has {known}"
            )
        return found
    numbers = version_numbers(sglang_version)
    if numbers is not None and numbers < found.since:
        since = ".".join(map(str, found.since))
        raise PlanError(
            f"guard '{name}' does not fit sglang {sglang_version}: {found.before}",
            f"it fits {since} and later",
        )
    return found


def version_numbers(version: str | None) -> tuple[int, ...] | None:
    """(0, 5, 21) for "0.5.21.post1"; None where no number can be read."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version or "")
    return tuple(map(int, found.groups())) if found else None
