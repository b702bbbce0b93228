"""Background thread for slow disk work, one task at a time.

There are two kinds of tasks. Freeing the blocks of a large deleted file takes a quarter of a second per GiB. Starting the write-back of
many pages can block for a long time on a slow disk.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from chaffinch.storage.system_calls import from_c_library

SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h; see sync_file_range(2).
LARGE_BYTES = 4 << 20  # Larger files are freed in the background: freeing this much takes a millisecond.
PENDING_MAX = 256  # Descriptors waiting, also of files still being read. Above it the caller frees files itself.
THREAD_NAME = "chaffinch-files"


class BackgroundIo:
    """Runs file tasks on another thread, in order of submission. The thread exists only while there are tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[int], None], int]] = deque()  # The first one is running.
        self._admitted = 0  # These, and those not submitted yet.

    def admit(self, opens: Callable[[], int]) -> int | None:
        """The descriptor that `opens` returns; the caller must pass it to `submit` later.

        None if too many are pending, or if `opens` raises OSError.
        """
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
        """Call `work` with the admitted descriptor later, then close the descriptor. An OSError is ignored."""
        with self._lock:
            self._waiting.append((work, descriptor))
            if len(self._waiting) > 1:
                return
        try:
            threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()
        except RuntimeError:  # The system has no thread left.
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
    """Truncate an unlinked file step by step, so that a sync of another file waits for at most one step."""
    found = os.fstat(descriptor)
    if found.st_nlink == 0:  # Otherwise another hard link, such as a backup, needs the data.
        # Truncate at page boundaries of any page size. A page that is cut in two is zeroed after the cut, and a socket may still be sending
        # it.
        for size in range((found.st_size - 1) // LARGE_BYTES * LARGE_BYTES, 0, -LARGE_BYTES):
            os.ftruncate(descriptor, size)


def write_back(position: int, length: int, descriptor: int) -> None:
    """Ask the system to start writing these bytes. The result is ignored: the next sync reports the same error."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, length, SYNC_FILE_RANGE_WRITE)


_sync_file_range = from_c_library("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
