"""Python's cyclic garbage collector, kept out of work that makes many objects and no cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold the collector off: each of its passes looks at every record held so far, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
