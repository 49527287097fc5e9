"""What pydantic found wrong with a prompt file, in sentences for people."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fidelity.errors import PromptError, did_you_mean
from fidelity.prompts.families import Family, Frame, Item, Turn
from fidelity.prompts.textyaml import Document, Place

_MODELS: Mapping[str, type[BaseModel]] = {"frames": Frame, "items": Item, "history": Turn}


def explain(document: Document, error: ValidationError, base: Place = ()) -> list[PromptError]:
    """One PromptError for each problem; `base` is where the validated part lies in the document."""
    return [_sentence(document, (*base, *problem["loc"]), problem) for problem in error.errors()]


def _sentence(document: Document, place: Place, problem: Any) -> PromptError:
    kind = problem["type"]
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        keys = ", ".join(_keys(place))
        return document.problem(place, f"this must be a mapping with the keys {keys}")
    key = str(place[-1])
    if kind == "missing":
        return document.problem(place[:-1], f"the key '{key}' is missing", _misspelt(document, place))
    if kind == "extra_forbidden":
        return document.problem(place, f"there is no key '{key}'", did_you_mean(key, _keys(place[:-1])))
    if kind == "string_type":
        return document.problem(place, f"'{key}' must be a text", "put it in double quotes")
    if kind in ("string_too_short", "too_short"):
        return document.problem(place, f"'{key}' is empty", "write something, or leave the key out")
    if kind == "string_pattern_mismatch":
        message = f"'{key}' is '{problem['input']}': only letters, digits and _ . + - may stand in a name"
        return document.problem(place, message)
    return document.problem(place, f"'{key}': {problem['msg'][0].lower()}{problem['msg'][1:]}")


def _keys(place: Place) -> list[str]:
    """Keys that a mapping at `place` may have."""
    parents = [step for step in place if isinstance(step, str)]
    return list((_MODELS[parents[-1]] if parents else Family).model_fields)


def _misspelt(document: Document, place: Place) -> str:
    """Hint for a missing key: the unknown key that stands there in its stead, if one looks like it."""
    key = str(place[-1])
    mapping = document.value(place[:-1])
    spare = (
        [str(word) for word in mapping if word not in _keys(place[:-1])] if isinstance(mapping, dict) else []
    )
    close = difflib.get_close_matches(key, spare, n=1, cutoff=0.6)
    return f"'{close[0]}' stands there: rename it to '{key}'" if close else f"add '{key}: ...'"
