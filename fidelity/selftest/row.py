"""One line of the mutation table: a server with a fault, the plan that looks at it, what must come out."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fidelity import plan as plans
from fidelity.plan import RunPlan
from fidelity.refserver.faults import KINDS, Kind
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS, RunVerdict

Group = Literal["fault", "blind pair", "reference", "vacuous", "control"]
"""`fault`: must fail; `blind pair`: cold and hit share a fault, must fail or be inconclusive for that reason;
`reference`: nothing on one server can show it, held against a healthy one it must fail; `vacuous`: proves
nothing, must be inconclusive; `control`: healthy, must pass."""

MUST_FAIL: tuple[Group, ...] = ("fault", "blind pair", "reference")

FULL: dict[str, Any] = {
    "prompts": {"count": 12},
    "resend": {"warmup_sends": 4, "warmup_tokens": 16},
    "checkpoint": {"prompts": 5},
    "draft": {"prompts": 8, "tokens": 32},
    "batch": {"sizes": (1, 2, 3, 8), "rounds": 5, "tokens": 4, "ragged": 6},
    "thresholds": {"max_rate": 0.25},
}
"""What every plan begins with: fewer prompts than a default run, as there are thousands of runs."""

PARTLY: dict[str, Any] = {"resend": {"positions": [64], "controls": [], "hits": 1}}
CORRUPT = 6
"""What a share of prompts lays over a plan whose row names the suspect tail, where all that counts is to meet
corrupt ones: so many prompts that CORRUPT are to be expected, at the shortest length."""

GATE: dict[str, Any] = {"thresholds": {"max_rate": 0.01}}
"""The rate that a release gate allows: corrupt prompts are proof against it where their lower limit is above
it, which two of 60 are, or of fewer."""

SMALL: dict[str, Any] = {
    "prompts": {"count": 9},
    "resend": {"hits": 1, "warmup_sends": 2, "warmup_tokens": 8},
    "checkpoint": {"prompts": 3},
    "decode": {"prompts": 3, "tokens": 48, "sampling": False},
    "draft": {"prompts": 6, "tokens": 32},
    "batch": {"sizes": (1, 2, 4), "rounds": 4, "tokens": 2, "ragged": 4},
    "thresholds": {"max_rate": 0.3, "coarse_rate": 0.65},
}
"""What --quick lays over a plan: about as few prompts as can still pass, and rates to match."""


@dataclass(frozen=True)
class Row:
    """`fault` is the engine's spec (`small_fault` that of --quick, where it is another), `plan` what differs
    from a default run, `small` what --quick changes beside SMALL. `names`: a pattern that a failing cell with
    its reason must hold, or the reason of the verdict where nothing fails; `diagnosis`: the first hypothesis
    that is right, empty where none is asked for; `partly`: what a share of prompts changes, if not PARTLY."""

    name: str
    fault: str
    group: Group
    catalogue: tuple[str, ...]
    names: str = ""
    diagnosis: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    small_fault: str = ""
    partly: Mapping[str, Any] | None = None

    @property
    def takes_rate(self) -> bool:
        """Can it be made to corrupt some prompts only?"""
        return self.group in MUST_FAIL and any("rate" in kind.keys for kind in self._kinds)

    def spec(self, rate: float, *, quick: bool = False) -> str:
        """The engine's --fault at a share of prompts."""
        fault = self.small_fault if quick and self.small_fault else self.fault
        if rate == 1:
            return fault
        parts = zip(fault.split(","), self._kinds, strict=True)
        return ",".join(f"{part}:rate={rate:g}" if "rate" in kind.keys else part for part, kind in parts)

    def run_plan(
        self, seed: int, rate: float, *, quick: bool, healthy: bool = False, reference: Path | None = None
    ) -> RunPlan:
        """The plan of one run of this row; `healthy`: that of the server that it is held against, by its
        `reference`. Raises PlanError."""
        fault = "none" if healthy else self.spec(rate, quick=quick)
        own: dict[str, Any] = {"seed": seed, "name": self.name}
        own["target"] = {"kind": "embedded", "fault": fault}
        if reference is not None:
            own["reference"] = str(reference)
        data = plans.merge(plans.merge(FULL, self.plan), own)
        if quick:
            data = plans.merge(plans.merge(data, SMALL), self.small)
        if rate < 1:
            data = plans.merge(plans.merge(data, GATE), self._over(rate))
            data["skip"] = self._needless
        return plans.build(data, f"selftest, {self.name}")

    def _over(self, rate: float) -> Mapping[str, Any]:
        """What a share of prompts lays over the plan."""
        if self.partly is not None:
            return self.partly
        if not self.names.startswith("resend L=193 tail=1"):
            return {}
        return {**PARTLY, "prompts": {"count": math.ceil(CORRUPT / rate)}}

    @property
    def _needless(self) -> list[str]:
        """Probes of the plan that only the diagnosis needs, or other cells than the one it names."""
        probes = self.plan["probes"]
        named = [name for name in probes if re.search(rf"\b{name}\b", self.names)]
        return [name for name in probes if named and name not in named]

    def holds(self, verdict: RunVerdict, rate: float = 1.0) -> bool:
        """Is the verdict the one that this row must have? Of a fault at a smaller rate, whichever cell fails
        has caught it."""
        if rate < 1 and verdict.state == FAIL:
            return self.takes_rate
        return {
            "fault": self._caught(verdict),
            "blind pair": self._caught(verdict) or self._says(verdict, INCONCLUSIVE),
            "reference": self._caught(verdict),
            "vacuous": self._says(verdict, INCONCLUSIVE),
            "control": verdict.state == PASS,
        }[self.group]

    def caught_by(self, verdict: RunVerdict) -> str:
        """The failing cell that this row names, or else the first; empty where none fails."""
        cells = failing(verdict)
        named = [cell for cell, reason in cells if re.search(self.names, f"{cell}: {reason}")]
        return (named or [cell for cell, _ in cells] or [""])[0]

    def _caught(self, verdict: RunVerdict) -> bool:
        return verdict.state == FAIL and any(
            re.search(self.names, f"{cell}: {reason}") for cell, reason in failing(verdict)
        )

    def _says(self, verdict: RunVerdict, state: str) -> bool:
        return verdict.state == state and re.search(self.names, verdict.reason) is not None

    @property
    def _kinds(self) -> list[Kind]:
        words = [part.split(":")[0] for part in self.fault.split(",")]
        return [KINDS[word] for word in words if word != "none"]


def failing(verdict: RunVerdict) -> list[tuple[str, str]]:
    """`probe cell` and reason of every cell that fails; of the screening where the cold answers there do."""
    arms = [arm for arm in verdict.arms if arm.state == FAIL]
    cells = [cell for arm in arms for cell in arm.cells if cell.state == FAIL]
    if not cells:
        return [("screening", arm.reason) for arm in arms]
    return [(f"{cell.probe} {cell.name}", cell.reason) for cell in cells]
