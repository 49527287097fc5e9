"""The fault region of a real server: from its model's shape, its TP and a GPU that somebody named."""

from dataclasses import replace
from pathlib import Path

from fidelity.affected import row
from fidelity.engines.facts import ServerFacts
from fidelity.errors import UsageError
from fidelity.gpus import gpu as find_gpu
from fidelity.model_shapes import MoeShape, find, preset
from fidelity.plan import Target


def learn(target: Target, facts: ServerFacts) -> ServerFacts:
    """The facts with the fault region and where it comes from; as they were where no GPU is named or the
    engine tells its own. A note says why a named GPU could not be used.

    Every arm of a run gets the same region, whatever its guard does, so that arms can be compared.
    """
    if target.gpu is None or facts.simulated:
        return facts
    gpu = find_gpu(target.gpu)
    units = target.compute_units or gpu.units
    try:
        if facts.raw.get("enable_dp_attention"):
            raise UsageError("under DP attention the batch of the experts is not that of one request")
        shape = _shape(target, facts)
        ep = facts.raw.get("ep_size")
        found = row(
            shape,
            gpu,
            facts.tp,
            units=target.compute_units,
            ep=ep if isinstance(ep, int) and ep > 0 else 1,
            sglang=facts.version,
        )
    except UsageError as exc:
        note = f"GPU {gpu.name} is named, but the fault region is not known: {exc.message}"
        return replace(facts, notes=(*facts.notes, note))
    where = f"{shape.model} ({shape.source}) at TP {facts.tp} on {gpu.name} with {units} compute units"
    if shape.safe_because or found.elsewhere:
        where = f"{where}: {shape.safe_because or found.elsewhere}; it"
    region = 0 if shape.safe_because else found.largest
    return replace(facts, fault_region=region, region_source=where)


def _shape(target: Target, facts: ServerFacts) -> MoeShape:
    """The preset of the model's name, else the config.json in the folder it is loaded from. Raises
    UsageError."""
    names = [*([target.model] if target.kind in ("process", "container") else []), *facts.names]
    for name in names:
        if Path(name, "config.json").is_file():
            return find(name)
        found = preset(name)
        if found is not None:
            return found
    raise UsageError(f"no preset and no config.json here tells the shape of {' or '.join(names)}")
