"""Reading answers that are not quite JSON, and logprobs that are not quite numbers."""

import json
import math
from collections import Counter
from typing import Any

HUGE = 1e30
CLAMPS = (-9999.0, -100.0)
OUT_OF_RANGE = "out of range float values"


def parse(text: str) -> Any:
    """The body as Python data; NaN and Infinity tokens are read as floats. Raises ValueError on anything
    else."""
    return json.loads(text)


def number(value: Any, faces: Counter[str]) -> float:
    """A logprob as a float, its face counted when it is not a plain finite number.

    Faces: null, nan, inf, -inf, huge (|x| > 1e30: a clamped infinity, read as infinite), -9999, -100
    (clamped -inf, kept as they are), not a number (anything else, read as NaN).
    """
    if value is None:
        faces["null"] += 1
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        faces["not a number"] += 1
        return math.nan
    result = float(value)
    if math.isnan(result):
        faces["nan"] += 1
    elif math.isinf(result):
        faces["inf" if result > 0 else "-inf"] += 1
    elif abs(result) > HUGE:
        faces["huge"] += 1
        return math.copysign(math.inf, result)
    elif result in CLAMPS:
        faces[f"{result:.0f}"] += 1
    return result


def error_message(data: Any, text: str) -> str:
    """The server's own words for an error, from any of the shapes servers use; else the start of the body."""
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict):
            error = error.get("message", error)
        if isinstance(error, str):
            return error
    return text[:300]


def is_nan_error(status: int, message: str) -> bool:
    """A server whose JSON encoder met a NaN: sglang answers 500, vLLM 400."""
    return status in (400, 500) and OUT_OF_RANGE in message.lower()


def count(value: Any) -> int | None:
    """A number of tokens as it was told; None for what is no whole number."""
    return value if type(value) is int else None
