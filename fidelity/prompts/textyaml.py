"""YAML in which every scalar is text, with the line of every value.

Prompts and answers are text: `answer: yes` must not become True, nor `answer: 007` the number 7.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fidelity.errors import PromptError

Place = tuple[int | str, ...]
"""Where a value lies in a document, e.g. ("items", 3, "answer")."""

_NULL = "tag:yaml.org,2002:null"


class _TextLoader(yaml.SafeLoader):
    """SafeLoader that leaves numbers, booleans and dates as they are written; only null is still null."""


_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag == _NULL]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Document:
    """One file: its data as plain dicts, lists and text, and the nodes that know their lines."""

    path: Path
    data: object
    node: yaml.Node

    def line(self, place: Place = ()) -> int:
        """Line (from 1) of the value at `place`, or of its nearest parent."""
        node = self.node
        for step in place:
            node = _child(node, step) or node
        return node.start_mark.line + 1

    def value(self, place: Place) -> object:
        """The data at `place`, or None when there is none."""
        data: Any = self.data
        for step in place:
            try:
                data = data[step]
            except (KeyError, IndexError, TypeError):
                return None
        found: object = data
        return found

    def problem(self, place: Place, message: str, hint: str | None = None) -> PromptError:
        """PromptError that begins with file, line and, inside a list, which entry of it."""
        where = f"{self.path}, line {self.line(place)}"
        if len(place) >= 2:
            entry = self.value(place[:2])
            name = entry.get("id") if isinstance(entry, dict) else None
            kind = "entry" if place[0] == "items" else "frame"
            where += f", {kind} '{name}'" if isinstance(name, str) else f", {kind} {int(place[1]) + 1}"
        return PromptError(f"{where}: {message}", hint)


def read(path: Path) -> Document:
    """Parse one file. Raises PromptError, with the line where there is one."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    loader = _TextLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise PromptError(f"{path} is empty")
        document = Document(path, loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise PromptError(
            f"{path}{where}: not valid YAML: {error.problem or error}",
            hint="put a text that holds ': ', ' #' or braces in double quotes",
        ) from error
    except yaml.YAMLError as error:
        raise PromptError(f"{path}: not valid YAML: {error}") from error
    finally:
        loader.dispose()
    return document


def repeated_keys(document: Document) -> Iterator[Place]:
    """Place of each key that one mapping holds twice: YAML would silently keep only the last one."""
    todo: list[tuple[Place, yaml.Node]] = [((), document.node)]
    done = set[int]()
    while todo:
        place, node = todo.pop()
        if id(node) in done:  # an alias
            continue
        done.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            todo.extend(((*place, n), child) for n, child in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            keys = set[str]()
            for key, child in node.value:
                if str(key.value) in keys:
                    yield (*place, str(key.value))
                keys.add(str(key.value))
                todo.append(((*place, str(key.value)), child))


def _child(node: yaml.Node, step: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        child: yaml.Node = node.value[step]
        return child
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # of a key written twice, the last one counts
            if key.value == step:
                child = value
                return child
    return None
