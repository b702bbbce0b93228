"""Disk implementation of the `FileSystem` interface.

No other module of the storage touches the disk, except those below it: `disk_file` for one file, `background_io`, `disk_reads`, `disk_lock`
and `syncfs`. `MemoryFileSystem` and the interface's names are exported here too, so that callers need one import.

Descriptors are opened on first use and at most `DESCRIPTORS_MAX` stay open: a broker has many more files than a process may hold open. When
another is needed, the least recently used file is closed (clock algorithm with one bit per file, cheap on the append path).

On a full disk, preallocated blocks of growing files are released before an append or a new name is refused.
"""

import errno
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from chaffinch.storage import background_io
from chaffinch.storage.disk_file import NO_SPACE, DiskFile, translated
from chaffinch.storage.disk_lock import FILE_MODE, DiskLock
from chaffinch.storage.disk_reads import FileId, HeldFiles, storage_error
from chaffinch.storage.files import AlreadyLocked, CorruptLog, File, FileSystem, Lock, MissingLog, Names, StorageError
from chaffinch.storage.memory_files import Interrupted, MemoryFileSystem
from chaffinch.storage.syncfs import Syncfs

__all__ = [
    "AlreadyLocked",
    "CorruptLog",
    "DiskFileSystem",
    "File",
    "FileSystem",
    "Interrupted",
    "Lock",
    "MemoryFileSystem",
    "MissingLog",
    "StorageError",
]

LOGGER = logging.getLogger(__name__)
DESCRIPTORS_MAX = 256  # The usual soft limit is 1024, and connections need descriptors too.
DIRECTORY_MODE = 0o700
"""Records and credentials are accessible to the user of the process only."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"

T = TypeVar("T")


class DiskFileSystem:
    """See `FileSystem`. The first `make_directory` creates `root`."""

    def __init__(self, root: str | os.PathLike[str], *, descriptors_max: int = DESCRIPTORS_MAX) -> None:
        self.root = os.path.abspath(root)
        self._descriptors_max = max(1, descriptors_max)
        self._open_files: dict[DiskFile, None] = {}
        self._background_io = background_io.BackgroundIo()
        self.held_files = HeldFiles()
        self._syncfs = Syncfs(self.root)
        self._lock: DiskLock | None = None
        self.has_failed_sync = False  # Then a later success no longer means that everything is on disk.
        self.lost: dict[str, str] = {}  # Files that may have lost written bytes, and why.
        self.times_synced = 0  # Syncs of the whole file system.
        self.incarnation = _boot_id()

    def describe(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def open(self, path: str, *, create: bool = True) -> DiskFile:
        full = self.describe(path)
        try:  # Without `translated`, which is slow: a start opens thousands of files.
            found = os.stat(full)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return DiskFile(self, full, found.st_size)
        except OSError as error:
            if not create or not isinstance(error, FileNotFoundError):
                raise storage_error(full, "open", error) from error
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with translated(full, "open"):
            descriptor = self._retry_without_reservations(partial(os.open, full, flags, FILE_MODE))
        file = DiskFile(self, full, 0, descriptor)
        self.remember(file)
        return file

    def exists(self, path: str) -> bool:
        full = self.describe(path)
        try:
            os.stat(full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise storage_error(full, "look for", error) from error
        return True

    def list(self, directory: str) -> Names:
        full = self.describe(directory)
        with translated(full, "list"):
            return sorted(os.listdir(full))

    def make_directory(self, directory: str) -> None:
        full = self.describe(directory)
        try:
            with translated(full, "make directory"):
                self._retry_without_reservations(partial(self._make_private, full))
        except StorageError as error:
            if error.error_number != errno.EEXIST:
                raise
            raise StorageError(full, "make directory", "a file with this name exists, a directory is needed") from error

    def _make_private(self, full: str) -> None:
        """Raises OSError. Parents of the root get the default mode of the process."""
        try:
            os.mkdir(full, DIRECTORY_MODE)
        except FileNotFoundError:
            parent = os.path.dirname(full)
            if full == self.root:
                os.makedirs(parent, exist_ok=True)
            else:
                self._make_private(parent)
            self._make_private(full)
        except FileExistsError:
            if not os.path.isdir(full):
                raise

    def remove(self, path: str) -> None:
        full = self.describe(path)
        with self._freeing_in_background(full), translated(full, "remove"):
            os.remove(full)

    def remove_tree(self, directory: str) -> None:
        full = self.describe(directory)
        with translated(full, "remove"), suppress(FileNotFoundError):
            for path, _, names in os.walk(full):
                for name in names:
                    with self._freeing_in_background(f"{path}/{name}"):
                        os.remove(f"{path}/{name}")
            shutil.rmtree(full)

    def rename(self, old: str, new: str) -> None:
        full, target = self.describe(old), self.describe(new)
        with self._freeing_in_background(target), translated(full, "rename"):
            self._retry_without_reservations(partial(os.replace, full, target))
        if full in self.lost:
            self.lost[target] = self.lost.pop(full)

    def sync_directory(self, directory: str) -> None:
        full = self.describe(directory)
        with translated(full, "sync"):
            descriptor = os.open(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            except OSError:
                self.note_failed_sync()
                raise
            finally:
                os.close(descriptor)

    def sync_all(self) -> None:
        if self.has_failed_sync:
            raise StorageError(self.root, "sync", "an earlier sync failed: bytes written before it may be lost")
        if not self._syncfs.is_reliable:
            raise StorageError(self.root, "sync", "a sync of its whole file system would not report every lost write")
        try:
            self._syncfs.sync()
        except OSError as error:
            self.note_failed_sync()
            LOGGER.warning("files in %s are synced one by one from now on: %s", self.root, error.strerror)
            raise storage_error(self.root, "sync", error) from error
        self.times_synced += 1

    def note_failed_sync(self) -> None:
        if self._lock is not None and not self.has_failed_sync:
            try:
                self._lock.note_loss()
            except OSError as error:
                LOGGER.warning("the next start on %s will not know that a sync has failed: %s", self.root, error.strerror)
        self.has_failed_sync = True

    def lock(self, path: str) -> DiskLock:
        full = self.describe(path)
        with translated(full, "lock"):
            lock = DiskLock(full, self._syncfs)
        try:
            with translated(self.root, "reread"):
                lock.reread_after_losses(self.root)
        except BaseException:
            lock.release()
            raise
        if lock.losses and self.incarnation:  # Bytes written before the last loss may be gone, as after a loss of power.
            self.incarnation = f"{_boot_id()}+{lock.losses}"
        self._lock = lock
        return lock

    def remember(self, file: DiskFile) -> None:
        """Register an open descriptor. Above the limit, close the first file not used since the clock's hand last passed it."""
        while len(self._open_files) >= self._descriptors_max:
            oldest = next(iter(self._open_files))
            del self._open_files[oldest]
            if oldest.is_recent:
                oldest.is_recent = False
                self._open_files[oldest] = None
            else:
                oldest.release_descriptor()
        self._open_files[file] = None

    def release_reservations(self) -> bool:
        """Release the blocks preallocated for any file; False if there were none."""
        found = [file for file in self._open_files if file.has_reservation]
        for file in found:
            file.reserve(0)
        return bool(found)

    def _retry_without_reservations(self, make: Callable[[], T]) -> T:
        """The result of `make`, which creates a name and may need a block. On a full disk release reservations and retry. Raises
        OSError.
        """
        try:
            return make()
        except OSError as error:
            if error.errno in NO_SPACE and self.release_reservations():
                return make()
            raise

    def kill(self) -> None:
        """Close every descriptor, as the end of a process does: nothing is synced or written. The object is unusable afterwards."""
        for file in self._open_files:
            file.close_descriptor()
        self._open_files.clear()

    def forget(self, file: DiskFile) -> None:
        self._open_files.pop(file, None)

    @contextmanager
    def _freeing_in_background(self, full: str) -> Iterator[None]:
        """The block removes the file's name; a large file is then freed in the background."""
        descriptor = None
        with suppress(OSError):  # It cannot be opened.
            found = os.stat(full)
            if found.st_size >= background_io.LARGE_BYTES:
                descriptor = self._background_io.admit(partial(os.open, full, os.O_RDWR | os.O_CLOEXEC))
        try:
            yield
            self.lost.pop(full, None)
        finally:
            if descriptor is not None:
                self.held_files.run_when_free(FileId.of(found), partial(self._background_io.submit, background_io.free, descriptor))

    def write_back(self, descriptor: int, position: int, length: int) -> None:
        """See `File`. A small range, such as the end of a log, does not need the thread."""
        if length < background_io.LARGE_BYTES:
            background_io.write_back(position, length, descriptor)
        else:
            copy = self._background_io.admit(partial(os.dup, descriptor))
            if copy is not None:  # Otherwise the system decides when to write.
                self._background_io.submit(partial(background_io.write_back, position, length), copy)


def _boot_id() -> str:
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
