"""Work on the disk that nobody waits for and that takes the system long, done by another thread, one after the other.

There are two kinds: to free what the system holds of a large file whose name is gone, a quarter of a second per GiB; and to begin writing
many pages, which a slow disk can hold up for long.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from chaffinch.storage.system_calls import from_c_library

SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h; see sync_file_range(2).
LARGE_BYTES = 4 << 20  # From here on a file is freed by the other thread: a millisecond.
PENDING_MAX = 256  # Descriptors that wait for it, also of files that are still read; what a further file takes is freed by the caller.
THREAD_NAME = "chaffinch-files"


class BackgroundIo:
    """Works on files in another thread, in the order in which they come. The thread is there while there is something to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[int], None], int]] = deque()  # The first is being worked on.
        self._admitted = 0  # These, and those that `submit` has yet to get.

    def admit(self, opens: Callable[[], int]) -> int | None:
        """A descriptor from `opens`, which `submit` must be given some time; None where there are too many, or it raises OSError."""
        with self._lock:
            if self._admitted >= PENDING_MAX:
                return None
            self._admitted += 1
        try:
            return opens()
        except OSError:
            with self._lock:
                self._admitted -= 1
            return None

    def submit(self, work: Callable[[int], None], descriptor: int) -> None:
        """Call `work` with the admitted descriptor some time, and close that. Nobody hears of an OSError."""
        with self._lock:
            self._waiting.append((work, descriptor))
            if len(self._waiting) > 1:
                return
        try:
            threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()
        except RuntimeError:  # No thread is to be had.
            self._run()

    def _run(self) -> None:
        is_done = False
        while not is_done:
            work, descriptor = self._waiting[0]
            with suppress(OSError):
                work(descriptor)
            with suppress(OSError):
                os.close(descriptor)
            with self._lock:
                self._waiting.popleft()
                self._admitted -= 1
                is_done = not self._waiting


def free(descriptor: int) -> None:
    """Cut off what a file without a name takes, piece by piece: a sync of anything else waits for one piece at most."""
    found = os.fstat(descriptor)
    if found.st_nlink == 0:  # Else it is somebody's backup.
        # By whole pages of any size: one that is cut in two is emptied behind the cut, and a socket may have it still.
        for size in range((found.st_size - 1) // LARGE_BYTES * LARGE_BYTES, 0, -LARGE_BYTES):
            os.ftruncate(descriptor, size)


def write_back(position: int, length: int, descriptor: int) -> None:
    """Let the system begin to write these bytes. Its result is not looked at: an error will come again at the next sync."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, length, SYNC_FILE_RANGE_WRITE)


_sync_file_range = from_c_library("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
