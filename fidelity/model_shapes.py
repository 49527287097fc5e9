"""The MoE dimensions of a model, from its config.json or a shipped preset, and one rank's part of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fidelity.errors import UsageError, did_you_mean
from fidelity.paths import data_dir

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
TOPK = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
INTERMEDIATE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
BLOCK = [128, 128]


@dataclass(frozen=True)
class LocalShape:
    """What one rank computes: `intermediate` is the width of an expert there, `experts` those it holds."""

    hidden: int
    intermediate: int
    topk: int
    experts: int


@dataclass(frozen=True)
class MoeShape:
    """A model's MoE over all ranks. `shared` is the width of its shared expert, None where it has none or
    does not say; `safe_because` is why its checkpoint never takes the block-scale kernel, None where it does;
    `assumed` names dimensions that no public source confirms."""

    model: str
    hidden: int
    intermediate: int
    topk: int
    experts: int
    shared: int | None = None
    safe_because: str | None = None
    source: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def fusable(self) -> bool:
        """Can the shared expert run as one more routed one? sglang does so where both have one width."""
        return self.shared == self.intermediate

    def local(self, tp: int, ep: int = 1, *, fused: bool = False) -> LocalShape:
        """The part of one rank under `tp`-way tensor and `ep`-way expert parallelism, with the shared expert
        fused or apart. Raises UsageError where they do not divide."""
        if tp < 1 or ep < 1 or tp % ep:
            raise UsageError(
                f"EP {ep} does not divide TP {tp}",
                "expert parallelism takes its ranks from tensor parallelism",
            )
        if self.intermediate % (tp // ep):
            raise UsageError(
                f"TP {tp} does not divide {self.model}: {self.intermediate} MoE columns on {tp // ep} ranks",
                f"give --tp from {', '.join(map(str, self.fitting_tp(ep)))}",
            )
        if self.experts % ep:
            raise UsageError(f"EP {ep} does not divide the {self.experts} experts of {self.model}")
        return LocalShape(
            hidden=self.hidden,
            intermediate=self.intermediate // (tp // ep),
            topk=self.topk + fused,
            experts=self.experts // ep + fused,
        )

    def fitting_tp(self, ep: int = 1) -> list[int]:
        return [tp for tp in (1, 2, 4, 8, 16) if tp % ep == 0 and self.intermediate % (tp // ep) == 0]


def find(model: str) -> MoeShape:
    """The shape of a model folder, a config.json or a preset's name. Raises UsageError for an unknown model,
    a file that cannot be read, and a model without MoE."""
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _from_file(path, model)
    found = preset(model)
    if found is not None:
        return found
    known = [entry.stem for entry in (data_dir("configs") / "models").glob("*.yaml")]
    raise UsageError(
        f"no model '{model}': neither a preset nor a folder or file with its config.json",
        did_you_mean(model.rsplit("/", 1)[-1], known),
    )


def preset(model: str) -> MoeShape | None:
    """The shape in the shipped preset of that name (a hub id's last part), None where there is none."""
    name = model.rstrip("/").rsplit("/", 1)[-1]
    path = data_dir("configs") / "models" / f"{name}.yaml"
    if not name or not path.is_file():
        return None
    shape = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("shape")
    if not isinstance(shape, dict):
        return None
    block = shape.get("quantization") == "fp8-block"
    quantization = {"quant_method": "fp8", "weight_block_size": BLOCK} if block else None
    config = {**shape, "quantization_config": quantization}
    return read_config(config, name, f"preset {name}", assumed=tuple(shape.get("assumed", ())))


def read_config(
    config: Mapping[str, Any], model: str, source: str, *, assumed: tuple[str, ...] = ()
) -> MoeShape:
    """The shape in a config.json's data; a nested `text_config` counts. Raises UsageError."""
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, Mapping) else config
    experts, topk = _size(text, EXPERTS, source), _size(text, TOPK, source)
    if experts is None or topk is None:
        raise UsageError(
            f"{source}: {model} has no mixture of experts ({' or '.join(EXPERTS)} with {TOPK[0]})",
            "dense models never take the split MoE kernel: there is nothing to test",
        )
    hidden, intermediate = _size(text, ("hidden_size",), source), _size(text, INTERMEDIATE, source)
    if hidden is None or intermediate is None:
        missing = "hidden_size" if hidden is None else INTERMEDIATE[0]
        raise UsageError(f"{source} has no {missing}", "give the config.json that the server loads")
    return MoeShape(
        model=model,
        hidden=hidden,
        intermediate=intermediate,
        topk=topk,
        experts=experts,
        shared=_shared(text, intermediate, source),
        safe_because=_safe_because(text.get("quantization_config") or config.get("quantization_config")),
        source=source,
        assumed=assumed,
    )


def _from_file(path: Path, model: str) -> MoeShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds no configuration: its top level must be keys and values")
    name = path.resolve().parent.name if path.name == "config.json" else Path(model).stem
    return read_config(config, name, str(path))


def _size(text: Mapping[str, Any], names: tuple[str, ...], source: str) -> int | None:
    """The first of these keys that has a value; 0 counts as none. Raises UsageError for what is no size."""
    for name in names:
        value = text.get(name)
        if value is None or value == 0:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsageError(f"{source}: {name} is {value!r}, not a positive whole number")
        return value
    return None


def _shared(text: Mapping[str, Any], intermediate: int, source: str) -> int | None:
    width = _size(text, ("shared_expert_intermediate_size",), source)
    count = _size(text, ("n_shared_experts",), source)
    return width or (count * intermediate if count else None)


def _safe_because(quantization: Any) -> str | None:
    """Why a checkpoint is not fp8 with a scale per 128 x 128 block; None where it is."""
    if not isinstance(quantization, Mapping) or not quantization:
        return "the checkpoint is not quantised"
    method = str(quantization.get("quant_method", "unknown"))
    if method == "fp8":
        block = quantization.get("weight_block_size")
        if block is None:
            return "its fp8 weights have one scale per tensor or channel, not per block"
        return None if list(block) == BLOCK else f"its fp8 blocks are {list(block)}, not {BLOCK}"
    if method == "compressed-tensors":
        groups = quantization.get("config_groups")
        weights = (
            [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
        )
        if any(one.get("strategy") == "block" and one.get("block_structure") == BLOCK for one in weights):
            return None
    return f"its quantisation is {method}, not fp8 block-scale"
