"""syncfs(2): one sync for all files of a file system, where its success is reliable.

Linux records a write error and reports it once to every descriptor that was open at that time. A descriptor opened after another process's
sync has received the error, such as a second broker's or `sync -f`, never reports it. So the descriptor here is open before the first
write.

Success is meaningful from Linux 5.8 on, and on file systems known to support it. FUSE does not forward the call, and an overlay does not
forward the error of the lower file system. Before 5.17 the call does not report a failure of the file system's own journal either. An fsync
of the directory does, and after the syncfs it has nothing left to write.
"""

import ctypes
import errno
import os
import re
import sys

from chaffinch.storage import system_calls

NOT_OPEN = -1
RELIABLE_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
"""ext2 to ext4, XFS, Btrfs, and tmpfs, which cannot lose anything; linux/magic.h."""


class Syncfs:
    """syncfs for the file system of the directory `root`. Works between `begin` and `end`; both may be called again."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._descriptor = NOT_OPEN

    def begin(self) -> None:
        """Open the descriptor; call it before the first write that `sync` covers. Raises OSError."""
        if self._descriptor == NOT_OPEN:
            self._descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def end(self) -> None:
        descriptor, self._descriptor = self._descriptor, NOT_OPEN
        if descriptor != NOT_OPEN:
            os.close(descriptor)

    @property
    def is_reliable(self) -> bool:
        """Whether `sync` would fail if anything written since `begin` were lost."""
        return (
            self._descriptor != NOT_OPEN
            and _syncfs is not None
            and system_calls.file_system_type(self._descriptor) in RELIABLE_FILE_SYSTEMS
        )

    def sync(self) -> None:
        """Sync the file system; requires `is_reliable`. Raises OSError, and the same loss is not reported again."""
        assert _syncfs is not None
        if _syncfs(self._descriptor) != 0:
            number = ctypes.get_errno() or errno.EIO
            raise OSError(number, os.strerror(number))
        os.fsync(self._descriptor)


def reports_lost_bytes(release: str) -> bool:
    """Whether syncfs reports bytes that could not be written: since Linux 5.8."""
    version = [int(part) for part in re.findall(r"\d+", release)[:2]]
    return sys.platform == "linux" and version >= [5, 8]


_syncfs = system_calls.from_c_library("syncfs", ctypes.c_int) if reports_lost_bytes(os.uname().release) else None
