"""Printing on a terminal so that nothing a server says can act on it."""

from rich.console import Console
from rich.text import Text

from fidelity.report import words


def say(console: Console, lines: str, style: str = "") -> None:
    """Print `lines` as they are: no markup, no escape codes of theirs, no wrapping by us."""
    for line in lines.split("\n"):
        console.print(text(line, style), soft_wrap=True)


def text(value: str, style: str = "") -> Text:
    return Text(words.readable(value), style=style)
