"""Prompt families: what a prompts/*.yaml file holds, and how an entry becomes chat messages."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

FILLER = "filler"

Text = Annotated[str, Field(strict=True, min_length=1)]
Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
Message = dict[str, str]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Turn(_Strict):
    """An earlier turn of the conversation."""

    role: Literal["user", "assistant"]
    content: Text


class Frame(_Strict):
    """The text around an item. `{filler}` must stand in it once; `{key}` is the item's text of that key."""

    system: Text | None = None
    history: tuple[Turn, ...] = ()
    user: Text

    def messages(self) -> list[Message]:
        """The frame as chat messages, its placeholders not yet replaced."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        earlier = [{"role": turn.role, "content": turn.content} for turn in self.history]
        return [*system, *earlier, {"role": "user", "content": self.user}]

    def text(self) -> str:
        """All of the frame's text, for looking up placeholders."""
        return "\n".join(message["content"] for message in self.messages())


class Item(BaseModel):
    """One question with its known answer; every further key is a text that the frames can use."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Text] = Field(init=False)

    id: Name
    answer: Text

    def values(self) -> dict[str, str]:
        """Every key of the item with its text."""
        return {"id": self.id, "answer": self.answer, **self.__pydantic_extra__}


class Family(_Strict):
    """Prompts of one kind: every item can be put into every frame. Frames are ordered longest first."""

    family: Name
    kind: Text
    about: Text
    frames: Annotated[tuple[Frame, ...], Field(min_length=1)]
    items: tuple[Item, ...]


def placeholders(text: str) -> list[str]:
    """Words in braces, in order: "{filler} {a}" gives ["filler", "a"]. JSON's braces hold no such word."""
    return re.findall(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", text)


def render(frame: Frame, item: Item, filler: str) -> list[Message]:
    """The chat messages of `item` in `frame`. Replaces in one pass: braces inside a value are left alone."""
    values = {**item.values(), FILLER: filler}
    return [{"role": turn["role"], "content": _replace(turn["content"], values)} for turn in frame.messages()]


def prompt_id(family: Family, item: Item) -> str:
    """Name of one prompt: "family/item"."""
    return f"{family.family}/{item.id}"


def _replace(text: str, values: Mapping[str, str]) -> str:
    pattern = "|".join(re.escape(key) for key in values)
    return re.sub(r"\{(" + pattern + r")\}", lambda found: values[found[1]], text)
