"""Prefix cache of a hybrid model: attention KV in pages of a tree, recurrent state only at checkpoints.

A prompt can be resumed only where both are known. KV is known after every cached token, the recurrent
state only where a forward was asked to keep it, so a match has two lengths: how far the KV agrees, and
how far the deepest page that also holds a state reaches.

The arrays are never written to, so cached pages and running requests may share them, and evicting a
page cannot disturb a request that already resumed from it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .model import Recurrent, State

Ids = NDArray[np.int64]
Arrays = tuple[NDArray[np.float32], ...]


@dataclass(eq=False, slots=True)
class Page:
    """One page of a namespace's tree, with its KV [page, heads, head_dim] of each full-attention layer.

    `ids` are its tokens as bytes; `end` counts the tokens up to and including it. A root is an empty page.
    """

    parent: "Page | None"
    ids: bytes
    end: int
    keys: Arrays = ()
    values: Arrays = ()
    recurrent: Recurrent | None = None
    children: dict[bytes, "Page"] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """Pages whose KV agrees with a prompt, from the root on; the first `usable` of them end in a state."""

    pages: tuple[Page, ...]
    usable: int

    @property
    def length(self) -> int:
        """Tokens that need not be computed again."""
        return self.pages[self.usable - 1].end if self.usable else 0

    @property
    def kv_length(self) -> int:
        """Tokens whose KV agrees, with or without a state to resume from."""
        return self.pages[-1].end if self.pages else 0


def checkpoint_position(match: Match, length: int, grid: int) -> int | None:
    """The one position at which a prefill of `length` tokens keeps its recurrent state, or None.

    Normally the last grid point of the extend. When the KV agrees further than the state, other prompts
    branch off there, and the state is kept at the branching point instead.
    """
    branch = match.kv_length // grid * grid
    if branch > match.length:
        return branch
    last = match.length + (length - match.length) // grid * grid
    return last if last > match.length else None


class PrefixCache:
    """Pages and states of all namespaces, least recently used ones evicted beyond the two bounds."""

    def __init__(self, page_size: int, max_tokens: int, max_states: int) -> None:
        self.page_size = page_size
        self.max_tokens = max_tokens
        self.max_states = max_states
        self.tokens = 0
        self.evicted_tokens = 0
        self._roots: dict[str, Page] = {}
        # Oldest first. A page is moved to the end after its descendants, so the oldest is always a leaf.
        self._pages: OrderedDict[Page, str] = OrderedDict()
        self._states: OrderedDict[Page, None] = OrderedDict()

    @property
    def states(self) -> int:
        """Recurrent states held."""
        return len(self._states)

    def match(self, namespace: str, ids: Ids, limit: int) -> Match:
        """The longest known prefix of `ids` within its first `limit` tokens."""
        page = self._roots.get(namespace)
        pages: list[Page] = []
        usable = 0
        for start in range(0, limit - self.page_size + 1, self.page_size):
            page = page.children.get(self._key(ids, start)) if page else None
            if page is None:
                break
            pages.append(page)
            if page.recurrent is not None:
                usable = len(pages)
        self._touch(pages)
        return Match(tuple(pages), usable)

    def restore(self, match: Match) -> State:
        """State after `match.length` tokens; only for a match that has a state."""
        pages = match.pages[: match.usable]
        recurrent = pages[-1].recurrent
        if recurrent is None:
            raise ValueError("the last usable page of a match must hold a recurrent state")
        layers = range(len(pages[0].keys))
        keys = tuple(np.concatenate([page.keys[layer] for page in pages]) for layer in layers)
        values = tuple(np.concatenate([page.values[layer] for page in pages]) for layer in layers)
        return State(match.length, recurrent, keys, values)

    def insert(self, namespace: str, ids: Ids, recurrent: Recurrent, keys: Arrays, values: Arrays) -> None:
        """Keep the KV of `ids` (whole pages) and the recurrent state after the last of them.

        `keys` and `values` hold [at least len(ids), heads, head_dim] per full-attention layer.
        """
        if len(ids) == 0 or len(ids) % self.page_size:
            raise ValueError(f"{len(ids)} tokens are not whole pages of {self.page_size}")
        page = self._roots.setdefault(namespace, Page(None, b"", 0))
        path: list[Page] = []
        for start in range(0, len(ids), self.page_size):
            key = self._key(ids, start)
            child = page.children.get(key)
            if child is None:
                end = start + self.page_size
                # Copies: a view would keep the whole request's KV alive after the page is evicted.
                child = Page(
                    page,
                    key,
                    end,
                    tuple(layer[start:end].copy() for layer in keys),
                    tuple(layer[start:end].copy() for layer in values),
                )
                page.children[key] = child
                self._pages[child] = namespace
                self.tokens += self.page_size
            path.append(child)
            page = child
        if page.recurrent is None:
            page.recurrent = recurrent
            self._states[page] = None
        self._touch(path)
        self._evict()

    def clear(self) -> None:
        """Forget everything."""
        self._roots.clear()
        self._pages.clear()
        self._states.clear()
        self.tokens = 0

    def _key(self, ids: Ids, start: int) -> bytes:
        return ids[start : start + self.page_size].tobytes()

    def _touch(self, path: Sequence[Page]) -> None:
        for page in reversed(path):
            self._pages.move_to_end(page)
            if page in self._states:
                self._states.move_to_end(page)

    def _evict(self) -> None:
        while self.tokens > self.max_tokens:
            self._remove(next(iter(self._pages)))
        while len(self._states) > self.max_states:
            page = next(iter(self._states))
            if page.children:
                page.recurrent = None
                del self._states[page]
            else:
                self._remove(page)

    def _remove(self, leaf: Page) -> None:
        """Remove a leaf, then the pages above it that only led to it: no branch ends without a state."""
        namespace = self._pages[leaf]
        page, parent = leaf, leaf.parent
        while parent is not None:
            del parent.children[page.ids]
            del self._pages[page]
            self._states.pop(page, None)
            self.tokens -= self.page_size
            self.evicted_tokens += self.page_size
            if parent.children or parent.recurrent is not None:
                return
            page, parent = parent, parent.parent
        del self._roots[namespace]
