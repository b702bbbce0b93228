"""The memory that a piece of a test takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chaffinch.records import kernels


@dataclass(slots=True)
class Taken:
    """Bytes: `size` is what is still held at the end, `peak` the most that was held at once."""

    size: int = 0
    peak: int = 0


@contextmanager
def traced() -> Iterator[Taken]:
    """What the block takes; known when it has ended.

    All threads are counted. The compiled loops are loaded before it begins, because the broker of an earlier test may still be loading them
    in a thread: that takes ten megabytes.
    """
    kernels.load()
    taken = Taken()
    tracemalloc.start()
    try:
        yield taken
        taken.size, taken.peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
