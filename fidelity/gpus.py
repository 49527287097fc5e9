"""The GPUs whose split heuristic is known here, by the compute units that aiter sees."""

from dataclasses import dataclass

from fidelity.errors import PlanError, did_you_mean


@dataclass(frozen=True)
class Gpu:
    """`units` are compute units of the whole GPU; a partition mode leaves fewer."""

    name: str
    arch: str
    units: int


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("mi350x", "gfx950", 256),
        Gpu("mi355x", "gfx950", 256),
        Gpu("mi300x", "gfx942", 304),
        Gpu("mi325x", "gfx942", 304),
        Gpu("mi308x", "gfx942", 80),
    )
}


def gpu(name: str) -> Gpu:
    """The GPU of that name. Raises PlanError with the nearest known one."""
    found = GPUS.get(name.lower())
    if found is None:
        raise PlanError(f"no GPU '{name}' is known here", did_you_mean(name.lower(), GPUS))
    return found
