"""The spec string of `--fault`: `NAME[:key=value...][,NAME...]`, and which prompts a rate picks."""

import hashlib
import math
from dataclasses import dataclass

from .kinds import KINDS, SPLIT_K, Key


@dataclass(frozen=True)
class Fault:
    """One fault with every key of its kind filled in."""

    name: str
    values: tuple[tuple[str, float], ...] = ()

    def __getitem__(self, key: str) -> float:
        return dict(self.values)[key]

    def picks(self, seed: int, subject: bytes, share: float | None = None) -> bool:
        """Whether `share` picks this subject: always or never for the same seed.

        `share` None is the fault's rate, 1 for a kind without. A subject is a prompt's ids, or a step.
        """
        if share is None:
            share = dict(self.values).get("rate", 1.0)
        text = f"{seed} {self.name} ".encode() + subject
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) < share * 2.0**64


def parse(spec: str) -> tuple[Fault, ...]:
    """The faults a spec names, in its order; `none` alone for no fault.

    Raises ValueError, with the value and what there is, for a name, key or value that is not known.
    """
    if spec.strip() == "none":
        return ()
    faults = tuple(_fault(part.strip()) for part in spec.split(","))
    names = [fault.name for fault in faults]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"fault {twice!r} is given twice in {spec!r}.")
    quoting = ("shifted-logprobs", "shard-logprobs")
    for family in (SPLIT_K, quoting, tuple(name for name in KINDS if name.startswith("nan-"))):
        several = [name for name in names if name in family]
        if len(several) > 1:
            raise ValueError(f"faults {' and '.join(several)} exclude each other in {spec!r}.")
    return faults


def _fault(part: str) -> Fault:
    name, *options = part.split(":")
    kind = KINDS.get(name)
    if kind is None:
        alone = " (none stands alone)" if name == "none" else ""
        raise ValueError(f"fault must be one of none, {', '.join(KINDS)}, got {name!r}{alone}.")
    values = {key: known.default for key, known in kind.keys.items()}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or key not in kind.keys:
            known = ", ".join(kind.keys) or "none"
            raise ValueError(f"fault {name} takes key=value with the keys {known}, got {option!r}.")
        values[key] = _value(name, key, text, kind.keys[key])
    return Fault(name, tuple(values.items()))


def _value(name: str, key: str, text: str, known: Key) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not known.low <= value <= known.high or (known.whole and value != int(value)):
        kind = "a whole number" if known.whole else "a number"
        raise ValueError(
            f"fault {name}: {key} must be {kind} from {known.low:g} to {known.high:g}, got {text!r}."
        )
    return value
