"""malloc settings (mallopt) for processes that Chaffinch owns; not for use as a library in another program."""

from __future__ import annotations

import ctypes

# Numbers and limits of mallopt(3), glibc: MMAP_THRESHOLD is at most 32 MiB.
TRIM_THRESHOLD, TRIM_BYTES = -1, 64 << 20
MMAP_THRESHOLD, MMAP_BYTES = -3, 32 << 20


def keep_freed_memory() -> bool:
    """Keep freed memory for later buffers of a megabyte instead of returning it to the system; False without mallopt(3).

    A fresh megabyte from the system costs 256 page faults, more than reading and sending it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, MMAP_BYTES) and mallopt(TRIM_THRESHOLD, TRIM_BYTES))
