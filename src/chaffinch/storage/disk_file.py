"""File on disk: all-or-nothing appends, syncs whose failure is remembered, and preallocated blocks.

The descriptor is opened on first use. `release_descriptor` may close it at any time; the next use opens it again.
"""

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from chaffinch.storage import disk_reads
from chaffinch.storage.disk_reads import HeldDiskFile, HeldFiles, storage_error
from chaffinch.storage.files import CLOSED_TEXT, BytesLike, FileSystem, StorageError, try_sync_all
from chaffinch.storage.system_calls import from_c_library

NOT_OPEN, CLOSED = -1, -2  # In place of a descriptor: to be opened on next use, or closed for good.
NEVER = -1
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
BUFFERS_PER_WRITE_MAX = 1024  # IOV_MAX of Linux.
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h; see fallocate(2).


@contextmanager
def translated(path: str, operation: str) -> Iterator[None]:
    """OSError -> StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, operation, error) from error


class Owner(FileSystem, Protocol):
    """What a file needs from its file system."""

    held_files: HeldFiles
    lost: dict[str, str]
    """Files that may have lost written bytes, and why."""
    times_synced: int
    """How often the whole file system was synced."""
    has_failed_sync: bool
    """Once a sync has failed, a later success no longer means that everything is on disk."""

    def note_failed_sync(self) -> None: ...

    def remember(self, file: "DiskFile") -> None:
        """Count one more open descriptor, and close the first that was not used since the clock's hand last passed."""
        ...

    def forget(self, file: "DiskFile") -> None: ...

    def release_reservations(self) -> bool:
        """Release the blocks preallocated for any file; False if there were none."""
        ...

    def write_back(self, descriptor: int, position: int, length: int) -> None:
        """See `File`."""
        ...


class DiskFile:
    """See `File`. `is_recent` is used by the owner's clock algorithm."""

    __slots__ = ("_descriptor", "_owner", "_poison", "_reserved", "_size", "_synced_size", "_unwatched_since", "is_recent", "path")

    def __init__(self, owner: Owner, path: str, size: int, descriptor: int = NOT_OPEN) -> None:
        self.path = path
        self.is_recent = True
        self._owner = owner
        self._descriptor = descriptor
        self._size = self._synced_size = size
        self._unwatched_since = (
            NEVER  # `times_synced` when unsynced bytes were left without an open descriptor, which would report a write error.
        )
        self._poison = owner.lost.get(path)
        self._reserved = 0  # End of the preallocated range, as far as this process knows.

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[BytesLike]) -> int:
        descriptor = self._descriptor if self._descriptor >= 0 else self._open_descriptor()
        self.is_recent = True
        if self._poison is not None:
            raise StorageError(self.path, "append to", self._poison)
        position = self._size
        try:
            if len(buffers) == 1:
                wanted = memoryview(buffers[0]).nbytes
                written = os.write(descriptor, buffers[0])
            else:
                wanted = sum(memoryview(buffer).nbytes for buffer in buffers)
                written = os.writev(descriptor, buffers[:BUFFERS_PER_WRITE_MAX]) if buffers else 0
            if written != wanted:
                self._write_rest(descriptor, buffers, written)
        except BaseException as error:
            self._cut_back(descriptor)
            if not isinstance(error, OSError):
                raise
            if error.errno in NO_SPACE and self._owner.release_reservations():
                return self.append(buffers)
            raise storage_error(self.path, "append to", error) from error
        self._size = position + wanted
        return position

    def _write_rest(self, descriptor: int, buffers: Sequence[BytesLike], written: int) -> None:
        """Finish a partial write: near a full disk, above 2 GiB, or after a signal."""
        for buffer in buffers:
            rest = memoryview(buffer).cast("B")
            if written >= len(rest):
                written -= len(rest)
                continue
            rest, written = rest[written:], 0
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    def _cut_back(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, self._size)
        except OSError as error:
            self._poison = f"a failed append left part of a write after byte {self._size}, and cutting it off failed ({error.strerror})"

    def read(self, position: int, length: int) -> bytes:
        return disk_reads.read(self.path, self._open_descriptor(), position, max(0, min(length, self._size - position)))

    def descriptor(self) -> int:
        return self._open_descriptor()

    def held(self) -> HeldDiskFile | None:
        return self._owner.held_files.hold(self.path, self._open_descriptor())

    @property
    def has_reservation(self) -> bool:
        """Whether blocks beyond the end of the file are preallocated."""
        return self._reserved > self._size

    def truncate(self, size: int) -> None:
        with translated(self.path, "truncate"):
            os.ftruncate(self._open_descriptor(), size)
        self._size, self._synced_size = size, NEVER  # Not the synced size, even if appends restore the number.

    def sync(self) -> None:
        descriptor = self._open_descriptor()
        # The kernel drops a write error together with the inode once no descriptor is open. A sync of the whole file system reports it,
        # where that is reliable.
        was_unwatched = self._poison is None and self._unwatched_since == self._owner.times_synced
        if was_unwatched and not try_sync_all(self._owner) and self._owner.has_failed_sync:
            self._refuse("an earlier sync failed, and this file was not open all the time: bytes written to it may be lost")
        if self._poison is not None:
            raise StorageError(self.path, "sync", self._poison)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # The kernel reports a failed write-back once and then drops the pages: a second sync would succeed without them.
            self._refuse(f"an earlier sync failed ({error.strerror}): bytes written before it may be lost")
            self._owner.note_failed_sync()
            raise storage_error(self.path, "sync", error) from error
        self.note_synced()

    def _refuse(self, reason: str) -> None:
        """Make every later append and sync of this file fail."""
        self._poison = self._owner.lost[self.path] = reason

    def note_synced(self) -> None:
        self._synced_size, self._unwatched_since = self._size, NEVER

    def note_unsynced(self) -> None:
        self._synced_size, self._unwatched_since = NEVER, self._owner.times_synced

    def write_back(self, position: int) -> None:
        self._owner.write_back(self._open_descriptor(), position, self._size - position)

    def reserve(self, length: int) -> None:
        if length > 0:
            self._reserved = self._size + length
            if _reserve(self._open_descriptor(), self._size, length):
                return
        # Also after a failure: a nearly full disk may have allocated a part. A closed file is skipped, because its path may belong to
        # another file.
        if self.has_reservation and self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
        self._reserved = 0

    def close(self) -> None:
        self.reserve(0)
        self._owner.forget(self)
        self.close_descriptor()
        self._descriptor = CLOSED

    def release_descriptor(self) -> None:
        """Close the descriptor until the next use."""
        if self._size != self._synced_size:
            self._unwatched_since = self._owner.times_synced
        self.reserve(0)  # Not possible once it is closed.
        self.close_descriptor()

    def close_descriptor(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, NOT_OPEN
            try:
                os.close(descriptor)
            except OSError as error:
                raise storage_error(self.path, "close", error) from error

    def _open_descriptor(self) -> int:
        self.is_recent = True
        if self._descriptor < 0:
            if self._descriptor == CLOSED:  # Its path may belong to another file: a compacted segment has its predecessor's.
                raise StorageError(self.path, "open", CLOSED_TEXT)
            try:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except OSError as error:
                raise storage_error(self.path, "open", error) from error
            self._owner.remember(self)
        return self._descriptor


def _reserve(descriptor: int, position: int, length: int) -> bool:
    """Preallocate blocks without changing the file's size; False if the system refused. `os.posix_fallocate` would extend the file."""
    return _fallocate is not None and _fallocate(descriptor, FALLOC_FL_KEEP_SIZE, position, length) == 0


_fallocate = from_c_library("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
