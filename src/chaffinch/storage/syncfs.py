"""One sync for all files of a file system: syncfs(2), as far as a success of it can be relied on.

Linux notes that bytes could not be written, and tells it once to every descriptor that was open then. One that is opened after anybody's
sync has heard of it, a second broker's on the same disk or `sync -f`, never does. So ours is open from before the first write on.

A success says something from Linux 5.8 on, and on file systems of which that is known. FUSE does not hand the call on, and an overlay does
not hand on the error of the file system below it. Before 5.17 the call does not tell either that the file system's own journal failed: an
fsync of the directory, which has nothing left to write by then, does.
"""

import ctypes
import errno
import os
import re
import sys

from chaffinch.storage import system_calls

NOT_OPEN = -1
RELIABLE_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
"""ext2 to ext4, XFS, Btrfs, and tmpfs, which has nothing to lose; linux/magic.h."""


class Syncfs:
    """Of the file system that holds the directory `root`. Works from `begin` to `end`; both may be called again."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._descriptor = NOT_OPEN

    def begin(self) -> None:
        """Before the first write of which `sync` is to tell. Raises OSError."""
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
        """Where it is reliable. Raises OSError, and nobody hears a second time of what was lost."""
        assert _syncfs is not None
        if _syncfs(self._descriptor) != 0:
            number = ctypes.get_errno() or errno.EIO
            raise OSError(number, os.strerror(number))
        os.fsync(self._descriptor)


def reports_lost_bytes(release: str) -> bool:
    """Whether syncfs fails where bytes could not be written: since Linux 5.8."""
    version = [int(part) for part in re.findall(r"\d+", release)[:2]]
    return sys.platform == "linux" and version >= [5, 8]


_syncfs = system_calls.from_c_library("syncfs", ctypes.c_int) if reports_lost_bytes(os.uname().release) else None
