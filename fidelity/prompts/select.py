"""Which prompts a run uses: the same for one seed, spread evenly over the families."""

from collections.abc import Sequence
from itertools import zip_longest
from random import Random
from typing import NamedTuple

from fidelity.errors import PromptError, did_you_mean
from fidelity.prompts.families import Family, Item, prompt_id


class Prompt(NamedTuple):
    """One item of one family."""

    family: Family
    item: Item

    @property
    def id(self) -> str:
        """ "family/item"."""
        return prompt_id(self.family, self.item)


def choose(
    families: Sequence[Family],
    count: int,
    seed: int,
    *,
    include: Sequence[str] = (),
    only: Sequence[str] = (),
) -> tuple[list[Prompt], list[Prompt]]:
    """`count` prompts and the reserve that replaces them, best substitute first.

    `include` are prompt ids ("family/item") that come first whatever the seed; `only` are names of families
    to draw the rest from (all when empty). The rest is dealt one from each family in turn, families and items
    shuffled by `seed`; the reserve goes on dealing in the same way. Adding an item to one family does not
    reorder the others. Raises PromptError when an id or a family is unknown or there are too few prompts.
    """
    first = [find(families, name) for name in dict.fromkeys(include)]
    known = {family.family: family for family in families}
    for name in only:
        if name not in known:
            raise PromptError(f"there is no prompt family '{name}'", did_you_mean(name, known))
    drawn = [known[name] for name in sorted(set(only) or known)]
    Random(seed).shuffle(drawn)
    rows = []
    for family in drawn:
        items = sorted(family.items, key=lambda item: item.id)
        Random(f"{seed}/{family.family}").shuffle(items)
        rows.append([Prompt(family, item) for item in items])
    taken = {prompt.id for prompt in first}
    dealt = [prompt for turn in zip_longest(*rows) for prompt in turn if prompt and prompt.id not in taken]
    order = first + dealt
    if count > len(order):
        raise PromptError(
            f"{count} distinct prompts are wanted and {len(order)} are there",
            "ask for fewer, or add families or a prompt folder of your own",
        )
    return order[:count], order[count:]


def find(families: Sequence[Family], name: str) -> Prompt:
    """The prompt called `name`, "family/item". Raises PromptError with the nearest known id."""
    known = {prompt_id(family, item): Prompt(family, item) for family in families for item in family.items}
    if name not in known:
        near = [key for key in known if key.partition("/")[0] == name.partition("/")[0]] or known
        if len(near) > 20:
            near = [key for key in near if key.endswith("/" + name.rpartition("/")[2])] or list(near)[:20]
        raise PromptError(f"there is no prompt '{name}'", did_you_mean(name, near))
    return known[name]
