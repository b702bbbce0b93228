"""What a process of its own may ask of the C library's allocator; a library in somebody else's process does not."""

from __future__ import annotations

import ctypes

# Numbers and limits of mallopt(3), glibc: 32 MiB is the most it takes for the second.
TRIM_THRESHOLD, TRIM_BYTES = -1, 64 << 20
MMAP_THRESHOLD, MMAP_BYTES = -3, 32 << 20


def keep_freed_memory() -> bool:
    """Keep what is freed for the next buffer of a megabyte, instead of giving it back to the system; False where there is no mallopt(3).

    A megabyte that comes fresh from the system costs 256 page faults, more than to read it and send it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, MMAP_BYTES) and mallopt(TRIM_THRESHOLD, TRIM_BYTES))
