"""The plan of a run: target, arms, prompts, probes, thresholds. A YAML file, flags, or both.

Everything that decides a verdict is fixed here before the first request and stored with the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from fidelity.errors import PlanError, did_you_mean
from fidelity.guards.registry import guard
from fidelity.paths import data_dir
from fidelity.plan_probes import (
    ALL_PROBES,
    DEFAULT_PROBES,
    LONG_DECODE,
    PATHS,
    SHORT_DECODE,
    Batch,
    Checkpoint,
    Decode,
    Draft,
    Equivalence,
    Impact,
    ProbeName,
    Prompts,
    Resend,
    Section,
    Speed,
    Sweep,
    Tasks,
)
from fidelity.plan_reference import unusable
from fidelity.plan_target import Target
from fidelity.servers.address import unfit_addresses

__all__ = ["Arm", "RunPlan", "Target", "Thresholds", "build", "merge", "read_file"]


class Arm(Section):
    """One server configuration; a `baseline` arm is shown and never decides the run. With a `url`, the arm is
    the server there: a replica of the target."""

    name: str
    guard: str = "none"
    baseline: bool = False
    url: str | None = None

    @field_validator("guard")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            return guard(value).name
        except PlanError as exc:
            # pydantic adds the place of a ValueError only; `_explain` takes the PlanError out again.
            raise ValueError(exc.message) from exc


class Thresholds(Section):
    """What decides. `max_rate`: share of corrupt prompts a pass excludes at `confidence`. `near_tie`:
    regret in nats up to which a flip is no corruption. `sure`: cold top-1 probability a prompt needs.
    `alpha`: the run's error rate over all tests of a shift. `kappa`, `least_margin`: a suspect's JSD may
    exceed its control's by max(kappa x control floor, least_margin) nats, its mean |delta logprob| over the
    cold answer's ids likewise with `least_move` (one bf16 step of a logit). `slack`: nats that censoring
    may leave open in a JSD. `elevated`, `elevated_move`: median JSD and mean |delta logprob| in nats from
    which control hits need an explanation. `looks`: times the run may be judged as it grows; each look
    spends its share of alpha and of 1 - confidence. `coarse_rate`: max_rate of the probes that send few
    prompts, which are all but resend."""

    max_rate: float = Field(0.10, gt=0, lt=1)
    confidence: float = Field(0.95, gt=0.5, lt=1)
    near_tie: float = Field(0.125, ge=0)
    sure: float = Field(0.9, ge=0, le=1)
    alpha: float = Field(0.001, gt=0, lt=0.5)
    kappa: float = Field(2.0, gt=0)
    least_margin: float = Field(1e-3, gt=0)
    least_move: float = Field(0.125, gt=0)
    slack: float = Field(0.05, gt=0)
    elevated: float = Field(0.01, gt=0)
    elevated_move: float = Field(0.5, gt=0)
    looks: int = Field(1, ge=1, le=2)
    coarse_rate: float = Field(0.5, gt=0, lt=1)

    @property
    def each_look(self) -> "Thresholds":
        """What one look decides by, so that all of them together keep the error rates (Bonferroni)."""
        spent = {"alpha": self.alpha / self.looks, "confidence": 1 - (1 - self.confidence) / self.looks}
        return self if self.looks == 1 else self.model_copy(update=spent)


class RunPlan(Section):
    """The whole plan of a run."""

    name: str = "default"
    target: Target = Target()
    arms: tuple[Arm, ...] = (Arm(name="none"),)
    prompts: Prompts = Prompts()
    probes: tuple[ProbeName, ...] | None = None
    """Which probes run; None is the default run: resend and a short decode."""
    also: tuple[ProbeName, ...] = ()
    """Probes to run beside them."""
    skip: tuple[ProbeName, ...] = ()
    exact: bool = False
    """Must cold, hit and decode be bit-identical, as on a deterministic server?"""
    resend: Resend = Resend()
    decode: Decode = Decode()
    batch: Batch = Batch()
    draft: Draft = Draft()
    impact: Impact = Impact()
    tasks: Tasks = Tasks()
    speed: Speed = Speed()
    equivalence: Equivalence = Equivalence()
    sweep: Sweep = Sweep()
    checkpoint: Checkpoint = Checkpoint()
    thresholds: Thresholds = Thresholds()
    reference: str | None = None
    """What cold answers are held against: a trusted run's folder, a file saved of one, a second server's
    URL."""
    reference_any_model: bool = False
    """Take a reference of another model name or vocabulary."""
    save_reference: Path | None = None
    """A file to keep this run's cold answers in, as a reference for others."""
    seed: int = 0
    max_minutes: float | None = Field(None, gt=0)
    max_requests: int | None = Field(None, ge=1)
    """Requests to /generate in one start of the run; then it ends as partial."""
    fail_fast: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "RunPlan":
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) != len(names):
            raise ValueError("arms need at least one entry, each with its own name")
        guarded = any(arm.guard != "none" for arm in self.arms)
        unnamed = len(self.arms) > 1 and not all(arm.url for arm in self.arms)
        if self.target.kind == "attach" and (guarded or unnamed):
            raise ValueError(
                "a running server is one arm as it is: guards cannot be applied to it from outside"
            )
        if self.target.kind == "attach" and not all(arm.url or self.target.url for arm in self.arms):
            raise ValueError("target.url is needed to attach to a running server")
        if self.target.kind == "attach":
            wrong = unfit_addresses([arm.url or self.target.url or "" for arm in self.arms])
            if wrong is not None:
                raise ValueError(wrong)
        elif any(arm.url for arm in self.arms) or self.target.replicas > 1:
            raise ValueError(
                "only a target of kind attach has replicas, by url of each arm or behind a router"
            )
        if len(self.arms) > 1 and self.target.replicas > 1:
            raise ValueError("replicas are given by their addresses, or as a number behind one, not both")
        if self.target.kind == "container" and not self.target.image:
            raise ValueError("target.image is needed to start a container")
        if all(arm.baseline for arm in self.arms):
            raise ValueError("every arm is a baseline: nothing would decide the run")
        wrong = unusable(self.reference, self.urls, names, self.selected)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @property
    def selected(self) -> tuple[ProbeName, ...]:
        """The probes to run, in the order they were named."""
        chosen = (*(DEFAULT_PROBES if self.probes is None else self.probes), *self.also)
        last: tuple[ProbeName, ...] = () if self.reference is None else ("reference",)
        names = dict.fromkeys(name for name in (*chosen, *last) if name not in self.skip)
        # It holds against the reference what the others record.
        return tuple(sorted(names, key=lambda name: name == "reference"))

    @property
    def urls(self) -> list[str]:
        """The addresses of the running servers, one for each arm; empty where they are started."""
        return [one for arm in self.arms if (one := arm.url or self.target.url) is not None]

    @property
    def replicated(self) -> bool:
        """Are the arms replicas of one deployment?"""
        return len(self.arms) > 1 and self.target.kind == "attach"

    def target_of(self, arm: Arm) -> Target:
        """The target as it is for one arm."""
        return self.target if arm.url is None else self.target.model_copy(update={"url": arm.url})

    @property
    def unprobed(self) -> dict[ProbeName, str]:
        """Paths of a server that this plan does not look at, by the probe that would."""
        return {name: path for name, path in PATHS.items() if name not in self.selected}

    @property
    def decode_size(self) -> tuple[int, int]:
        """Prompts of the decode probe, and new tokens of each."""
        if self.probes is None and self.decode.tokens is None:
            return self.decode.prompts or SHORT_DECODE[0], SHORT_DECODE[1]
        count = self.decode.prompts or LONG_DECODE[0]
        return count, -(-(self.decode.tokens or LONG_DECODE[1]) // count)

    def with_prompts(self, count: int) -> "RunPlan":
        """The same plan with another number of prompts."""
        return self.model_copy(update={"prompts": self.prompts.model_copy(update={"count": count})})


def build(data: Mapping[str, Any], source: str = "the command line") -> RunPlan:
    """A plan from plain data. Raises PlanError naming the key, its value and the nearest known key."""
    try:
        return RunPlan.model_validate(dict(data))
    except ValidationError as exc:
        raise _explain(exc, source) from exc


def read_file(name: str) -> dict[str, Any]:
    """The plain data of a plan file: a path, or the name of a shipped one (`gate`, `first-thread`).

    Raises PlanError.
    """
    path = Path(name)
    shipped = data_dir("configs") / f"{name}.yaml"
    if not path.exists() and shipped.exists():
        path = shipped
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        known = [entry.stem for entry in data_dir("configs").glob("*.yaml")]
        raise PlanError(f"cannot read the plan {name}: {exc.strerror}", did_you_mean(name, known)) from exc
    except yaml.YAMLError as exc:
        raise PlanError(f"{path} is not YAML: {exc}") from exc
    if not isinstance(data, dict):
        raise PlanError(f"{path} holds no plan: its top level must be keys and values")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section; None in `over` leaves the base value."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            continue
        below = merged.get(key)
        if not isinstance(value, dict):
            merged[key] = value
        elif below is None or isinstance(below, dict):
            merged[key] = merge(below or {}, value)
        # Anything else where a section belongs is left there for `build` to complain of.
    return merged


_SECTIONS: dict[str, type[BaseModel]] = {
    "target": Target,
    "arms": Arm,
    "prompts": Prompts,
    "resend": Resend,
    "decode": Decode,
    "batch": Batch,
    "draft": Draft,
    "impact": Impact,
    "tasks": Tasks,
    "speed": Speed,
    "equivalence": Equivalence,
    "sweep": Sweep,
    "checkpoint": Checkpoint,
    "thresholds": Thresholds,
}


def _explain(exc: ValidationError, source: str) -> PlanError:
    first = exc.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the plan"
    if first["type"] == "literal_error" and first["loc"][0] in ("probes", "also", "skip"):
        hint = did_you_mean(str(first["input"]), ALL_PROBES)
        return PlanError(f"{source}: {where}: there is no probe '{first['input']}'", hint)
    if first["type"] == "extra_forbidden":
        parent = _SECTIONS.get(str(first["loc"][0]), RunPlan) if len(first["loc"]) > 1 else RunPlan
        hint = did_you_mean(str(first["loc"][-1]), parent.model_fields)
        return PlanError(f"{source}: there is no option '{where}'", hint)
    cause = first.get("ctx", {}).get("error")
    told = getattr(cause, "__cause__", None)
    if isinstance(told, PlanError):
        return PlanError(f"{source}: {where}: {told.message}", told.hint)
    message = str(cause) if cause else first["msg"]
    given = "" if isinstance(first["input"], dict) else f" (given: {first['input']!r})"
    return PlanError(f"{source}: {where}: {message[0].lower()}{message[1:]}{given}")
