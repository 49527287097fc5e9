"""Reading prompts/*.yaml. Every problem names file, line and entry; a broken entry costs only itself."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fidelity.errors import PromptError, did_you_mean
from fidelity.paths import data_dir
from fidelity.prompts import textyaml
from fidelity.prompts.explain import explain
from fidelity.prompts.families import FILLER, Family, Frame, Item, placeholders, render
from fidelity.prompts.textyaml import Document, Place

Model = TypeVar("Model", bound=BaseModel)


def load_families(paths: Iterable[Path] | None = None) -> list[Family]:
    """All families of `paths` (files or folders of *.yaml; default: the shipped ones), sorted by name.

    Raises PromptError listing every problem found in all files.
    """
    return list(_shipped()) if paths is None else _sound(paths)


@cache
def _shipped() -> tuple[Family, ...]:
    """Read once: they take half a second."""
    return tuple(_sound(None))


def _sound(paths: Iterable[Path] | None) -> list[Family]:
    families, problems = read_families(paths)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = "".join(
            f"\n  {error.message}" + (f" ({error.hint})" if error.hint else "") for error in problems
        )
        raise PromptError(
            f"{len(problems)} problems in the prompt files:{lines}", "correct them, then run again"
        )
    return families


def read_families(paths: Iterable[Path] | None = None) -> tuple[list[Family], list[PromptError]]:
    """Like `load_families`, but gives what is sound together with the problems.

    A broken entry is left out and its family kept; a family whose own keys or frames are broken is left out
    and the other files kept.
    """
    families: dict[str, tuple[Family, Path]] = {}
    problems: list[PromptError] = []
    for path in [data_dir("prompts")] if paths is None else paths:
        for file in _files(path):
            family, found = _read_file(file)
            problems += found
            if family is None:
                continue
            if family.family in families:
                message = f"{file}: the family '{family.family}' is also in {families[family.family][1]}"
                problems.append(PromptError(message, "give each family its own name"))
            else:
                families[family.family] = (family, file)
    if not families and not problems:
        raise PromptError("there are no prompt files (*.yaml) to read", "name a folder that holds some")
    return [families[name][0] for name in sorted(families)], problems


def _files(path: Path) -> list[Path]:
    return sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]


def _read_file(path: Path) -> tuple[Family | None, list[PromptError]]:
    try:
        document = textyaml.read(path)
    except PromptError as error:
        return None, [error]
    if not isinstance(document.data, dict):
        keys = ", ".join(Family.model_fields)
        return None, [document.problem((), f"a prompt file is a mapping with the keys {keys}")]
    twice = list(textyaml.repeated_keys(document))
    problems = [
        document.problem(place, f"the key '{place[-1]}' is written twice", "keep one of them")
        for place in twice
    ]
    spoiled = {place[1] for place in twice if place[0] == "items" and len(place) > 2}
    if any(place[0] != "items" or len(place) < 3 for place in twice):
        return None, problems
    head = _validate(Family, {**document.data, "items": []}, document, (), problems)
    entries = document.data.get("items")
    if not isinstance(entries, list) or not entries:
        problems.append(document.problem(("items",), "'items' must list at least one entry"))
        return None, problems
    items = {n: _validate(Item, entry, document, ("items", n), problems) for n, entry in enumerate(entries)}
    if head is None:
        return None, problems
    sound = {n: item for n, item in items.items() if item is not None and n not in spoiled}
    found = _check_frames(document, head.frames, {key for item in sound.values() for key in item.values()})
    if found or not sound:
        return None, problems + found
    kept, found = _check_items(document, head.frames, sound)
    family = head.model_copy(update={"items": tuple(kept)}) if kept else None
    return family, problems + found


def _validate(
    model: type[Model], data: Any, document: Document, place: Place, problems: list[PromptError]
) -> Model | None:
    """The validated model, or None with its problems added to the list."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems += explain(document, error, place)
        return None


def _check_frames(document: Document, frames: Sequence[Frame], keys: set[str]) -> list[PromptError]:
    """What is wrong with the frames of a family whose entries have `keys`."""
    problems = []
    for n, frame in enumerate(frames):
        words = placeholders(frame.text())
        count = words.count(FILLER)
        if count != 1:
            message = f"'{{{FILLER}}}' stands {count} times in the frame, and must stand once"
            hint = did_you_mean(FILLER, words) if words and not count else None
            problems.append(document.problem(("frames", n), message, hint))
        elif keys and not keys & set(words):
            message = "the frame uses no key of the entries, so that all would make the same prompt"
            word = next((word for word in words if word != FILLER), "")
            problems.append(document.problem(("frames", n), message, did_you_mean(word, keys)))
        roles = [turn.role for turn in frame.history]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            message = "'history' must take turns, user first and assistant last"
            problems.append(document.problem(("frames", n, "history"), message))
    return problems


def _check_items(
    document: Document, frames: Sequence[Frame], items: dict[int, Item]
) -> tuple[list[Item], list[PromptError]]:
    """Items that fill every frame, each under its own id and with a prompt of its own; and what is wrong with
    the others."""
    words = {word for frame in frames for word in placeholders(frame.text())} - {FILLER}
    used = {word for word in words if any(word in item.values() for item in items.values())}
    kept: list[Item] = []
    problems: list[PromptError] = []
    owners: dict[str, str] = {}
    for n, item in items.items():
        missing = sorted(used - item.values().keys())
        unused = sorted(item.values().keys() - words - {"id", "answer"})
        texts = [f"{number} {render(frame, item, '')}" for number, frame in enumerate(frames)]
        twin = next((owners[text] for text in texts if text in owners), None)
        if item.id in {other.id for other in kept}:
            message, hint = "the id is used twice in this family", "give each entry its own id"
        elif unused:
            message, hint = f"no frame uses the key '{unused[0]}'", did_you_mean(unused[0], missing or words)
        elif missing:
            message, hint = (
                f"the key '{missing[0]}' is missing, and a frame uses it",
                f"add '{missing[0]}: ...'",
            )
        elif twin:
            message, hint = f"it makes the same prompt as entry '{twin}'", "leave one of the two out"
        else:
            kept.append(item)
            owners.update((text, item.id) for text in texts)
            continue
        problems.append(document.problem(("items", n), message, hint))
    return kept, problems
