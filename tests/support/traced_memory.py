"""Memory allocated by a block of a test."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chaffinch.records import kernels


@dataclass(slots=True)
class TracedMemory:
    """Bytes allocated: `size` at the end of the block, `peak` at most."""

    size: int = 0
    peak: int = 0


@contextmanager
def traced() -> Iterator[TracedMemory]:
    """Measure what the block allocates; the result is set when the block ends.

    All threads are counted. The compiled loops are loaded first: the broker of an earlier test may still be loading them in a thread, which
    takes 10 MB.
    """
    kernels.load()
    memory = TracedMemory()
    tracemalloc.start()
    try:
        yield memory
        memory.size, memory.peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
