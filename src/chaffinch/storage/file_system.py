"""The disk behind the `FileSystem` interface. No other module of the storage touches the disk, but `disk_reads` for reading, `disk_lock`
and `whole_sync`.

`MemoryFileSystem` and the interface's own names are exported from here too, so that callers need one import.

Descriptors are opened on first use and at most `DESCRIPTORS_MAX` stay open: a broker has many more files than a process may hold open.
When one more is needed, the file unused for longest goes (a clock with one bit per file: cheap on the append path).

Two things that nobody waits for take the system long: to free what it holds of a large file whose name is gone, a quarter of a second per
GiB; and to begin writing many pages, which a slow disk can hold up for long. Another thread does them, one after the other.
"""

import ctypes
import errno
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from chaffinch.storage import disk_reads
from chaffinch.storage.disk_lock import DiskLock
from chaffinch.storage.disk_reads import FileId, HeldDiskFile, Holders, storage_error
from chaffinch.storage.files import (
    CLOSED_TEXT,
    AlreadyLocked,
    BytesLike,
    CorruptLog,
    File,
    FileSystem,
    Lock,
    Names,
    StorageError,
    synced_at_once,
)
from chaffinch.storage.memory_files import Interrupted, MemoryFileSystem
from chaffinch.storage.system_calls import from_c_library
from chaffinch.storage.whole_sync import WholeSync

__all__ = [
    "AlreadyLocked",
    "CorruptLog",
    "DiskFileSystem",
    "File",
    "FileSystem",
    "Interrupted",
    "Lock",
    "MemoryFileSystem",
    "StorageError",
]

LOGGER = logging.getLogger(__name__)
NOT_OPEN, CLOSED = -1, -2  # Instead of a descriptor: opened when it is next needed, or never again.
NEVER = -1
DESCRIPTORS_MAX = 256  # The usual soft limit of a process is 1024, and connections need theirs.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
BUFFERS_PER_WRITE_MAX = 1024  # IOV_MAX of Linux.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h; see sync_file_range(2).
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h; see fallocate(2).
LARGE_BYTES = 4 << 20  # From here on a file is freed by the other thread: a millisecond.
ASIDE_MAX = 256  # Descriptors that wait for it, also of files that are still read; what a further file takes is freed by the caller.
ASIDE = "chaffinch-files"


@contextmanager
def translated(path: str, operation: str) -> Iterator[None]:
    """OSError -> StorageError, here and nowhere else."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, operation, error) from error


class DiskFile:
    """See `File`. `is_recent` belongs to the clock in `DiskFileSystem`."""

    __slots__ = ("_descriptor", "_owner", "_poison", "_reserved", "_size", "_synced_size", "_unheard_since", "is_recent", "path")

    def __init__(self, owner: "DiskFileSystem", path: str, size: int, descriptor: int = NOT_OPEN) -> None:
        self.path = path
        self.is_recent = True
        self._owner = owner
        self._descriptor = descriptor
        self._size = self._synced_size = size
        self._unheard_since = NEVER  # How often all was synced when unsynced bytes were left without a descriptor that hears of their fate.
        self._poison = owner.lost.get(path)
        self._reserved = 0  # Where the room ends that was set aside, as far as this process knows.

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[BytesLike]) -> int:
        descriptor = self._descriptor if self._descriptor >= 0 else self._ready()
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
            if error.errno in NO_SPACE and self._owner.give_back_room():
                return self.append(buffers)
            raise storage_error(self.path, "append to", error) from error
        self._size = position + wanted
        return position

    def _write_rest(self, descriptor: int, buffers: Sequence[BytesLike], written: int) -> None:
        """Finish a write that the system did in part: near a full disk, above 2 GiB, or when a signal came."""
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
        return disk_reads.read(self.path, self._ready(), position, max(0, min(length, self._size - position)))

    def descriptor(self) -> int:
        return self._ready()

    def held(self) -> HeldDiskFile | None:
        return self._owner.holders.hold(self.path, self._ready())

    @property
    def has_room(self) -> bool:
        """Whether the disk has less for others than what is written here."""
        return self._reserved > self._size

    def truncate(self, size: int) -> None:
        with translated(self.path, "truncate"):
            os.ftruncate(self._ready(), size)
        self._size, self._synced_size = size, NEVER  # Not the size that was synced, though appends bring that back.

    def sync(self) -> None:
        descriptor = self._ready()
        # The system forgets the error with the file, once nobody has that open. A sync of all tells of it, where that can be relied on.
        is_unheard = self._poison is None and self._unheard_since == self._owner.times_synced
        if is_unheard and not synced_at_once(self._owner) and self._owner.has_failed_sync:
            self._refuse("an earlier sync failed, and this file was not open all the time: what was written to it may be lost")
        if self._poison is not None:
            raise StorageError(self.path, "sync", self._poison)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # The kernel reports a failed write-back once and then forgets the pages: a second sync would succeed without them.
            self._refuse(f"an earlier sync failed ({error.strerror}): what it covered may be lost")
            self._owner.note_failed_sync()
            raise storage_error(self.path, "sync", error) from error
        self.note_synced()

    def _refuse(self, reason: str) -> None:
        """Every later append and sync of this file."""
        self._poison = self._owner.lost[self.path] = reason

    def note_synced(self) -> None:
        self._synced_size, self._unheard_since = self._size, NEVER

    def note_unsynced(self) -> None:
        self._synced_size, self._unheard_since = NEVER, self._owner.times_synced

    def write_back(self, position: int) -> None:
        self._owner.write_back(self._ready(), position, self._size - position)

    def reserve(self, length: int) -> None:
        if length > 0:
            self._reserved = self._size + length
            if _reserve(self._ready(), self._size, length):
                return
        # After a refusal, too: a disk that is nearly full may have given some of it. What is not open now is left alone: by its name
        # another file could be found.
        if self.has_room and self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
        self._reserved = 0

    def close(self) -> None:
        self.reserve(0)
        self._owner.forget(self)
        self.close_descriptor()
        self._descriptor = CLOSED

    def let_go(self) -> None:
        """Do without a descriptor until the next use."""
        if self._size != self._synced_size:
            self._unheard_since = self._owner.times_synced
        self.reserve(0)  # Later nobody could.
        self.close_descriptor()

    def close_descriptor(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, NOT_OPEN
            try:
                os.close(descriptor)
            except OSError as error:
                raise storage_error(self.path, "close", error) from error

    def _ready(self) -> int:
        self.is_recent = True
        if self._descriptor < 0:
            if self._descriptor == CLOSED:  # By its name another file could be found: a compacted one has that of the one before.
                raise StorageError(self.path, "open", CLOSED_TEXT)
            try:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except OSError as error:
                raise storage_error(self.path, "open", error) from error
            self._owner.remember(self)
        return self._descriptor


class DiskFileSystem:
    """See `FileSystem`. `root` is made by the first `make_directory`, not before."""

    def __init__(self, root: str | os.PathLike[str], *, descriptors_max: int = DESCRIPTORS_MAX) -> None:
        self.root = os.path.abspath(root)
        self._descriptors_max = max(1, descriptors_max)
        self._open_files: dict[DiskFile, None] = {}
        self._aside = Aside()
        self.holders = Holders()
        self._whole = WholeSync(self.root)
        self._lock: DiskLock | None = None
        self.has_failed_sync = False  # Once one has, nothing says that all is on disk.
        self.lost: dict[str, str] = {}  # Files that may have lost what was written to them, and why.
        self.times_synced = 0  # As a whole.
        self.incarnation = _boot_id()

    def describe(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def open(self, path: str, *, create: bool = True) -> DiskFile:
        full = self.describe(path)
        try:  # Not `translated`: a start opens thousands.
            return DiskFile(self, full, os.stat(full).st_size)
        except OSError as error:
            if not create or not isinstance(error, FileNotFoundError):
                raise storage_error(full, "open", error) from error
        with translated(full, "open"):
            descriptor = os.open(full, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
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
                os.makedirs(full, exist_ok=True)
        except StorageError as error:
            if error.error_number != errno.EEXIST:
                raise
            raise StorageError(full, "make directory", "there is a file of this name, where a directory is wanted") from error

    def remove(self, path: str) -> None:
        full = self.describe(path)
        with self._freed_aside(full), translated(full, "remove"):
            os.remove(full)

    def remove_tree(self, directory: str) -> None:
        full = self.describe(directory)
        with translated(full, "remove"), suppress(FileNotFoundError):
            for path, _, names in os.walk(full):
                for name in names:
                    with self._freed_aside(f"{path}/{name}"):
                        os.remove(f"{path}/{name}")
            shutil.rmtree(full)

    def rename(self, old: str, new: str) -> None:
        full, target = self.describe(old), self.describe(new)
        with self._freed_aside(target), translated(full, "rename"):
            os.replace(full, target)
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
            raise StorageError(self.root, "sync", "an earlier sync failed: what it covered may be lost")
        if not self._whole.is_reliable:
            raise StorageError(self.root, "sync", "a sync of its whole file system would not tell of everything that is lost")
        try:
            self._whole.sync()
        except OSError as error:
            self.note_failed_sync()
            LOGGER.warning("from now on each file in %s is synced by itself: %s", self.root, error.strerror)
            raise storage_error(self.root, "sync", error) from error
        self.times_synced += 1

    def note_failed_sync(self) -> None:
        if self._lock is not None and not self.has_failed_sync:
            try:
                self._lock.note_loss()
            except OSError as error:
                LOGGER.warning("the next start of a process on %s will not know that a sync has failed: %s", self.root, error.strerror)
        self.has_failed_sync = True

    def lock(self, path: str) -> DiskLock:
        full = self.describe(path)
        with translated(full, "lock"):
            lock = DiskLock(full, self._whole)
        try:
            with translated(self.root, "read anew"):
                lock.face_losses(self.root)
        except BaseException:
            lock.release()
            raise
        if lock.losses and self.incarnation:  # What was written before the last may have gone as with the power.
            self.incarnation = f"{_boot_id()}+{lock.losses}"
        self._lock = lock
        return lock

    def remember(self, file: DiskFile) -> None:
        """Count one more open descriptor, and close the first that was not used since the clock's hand last passed."""
        while len(self._open_files) >= self._descriptors_max:
            oldest = next(iter(self._open_files))
            del self._open_files[oldest]
            if oldest.is_recent:
                oldest.is_recent = False
                self._open_files[oldest] = None
            else:
                oldest.let_go()
        self._open_files[file] = None

    def give_back_room(self) -> bool:
        """Have the disk take back what was set aside for any file; whether there was any."""
        found = [file for file in self._open_files if file.has_room]
        for file in found:
            file.reserve(0)
        return bool(found)

    def kill(self) -> None:
        """Let go of every descriptor as the end of a process does: nothing is synced, nothing written. The object is void afterwards."""
        for file in self._open_files:
            file.close_descriptor()
        self._open_files.clear()

    def forget(self, file: DiskFile) -> None:
        self._open_files.pop(file, None)

    @contextmanager
    def _freed_aside(self, full: str) -> Iterator[None]:
        """Inside, the file's name goes; what it takes is freed in another thread if it is large."""
        descriptor = None
        with suppress(OSError):  # Then it cannot be held.
            found = os.stat(full)
            if found.st_size >= LARGE_BYTES:
                descriptor = self._aside.admit(partial(os.open, full, os.O_RDWR | os.O_CLOEXEC))
        try:
            yield
            self.lost.pop(full, None)
        finally:
            if descriptor is not None:
                self.holders.when_free(FileId.of(found), partial(self._aside.do, free, descriptor))

    def write_back(self, descriptor: int, position: int, length: int) -> None:
        """See `File`. For as little as is left at the end of a log no thread is worth while."""
        if length < LARGE_BYTES:
            write_back(position, length, descriptor)
        else:
            copy = self._aside.admit(partial(os.dup, descriptor))
            if copy is not None:  # Else the system begins when it likes.
                self._aside.do(partial(write_back, position, length), copy)


class Aside:
    """Works on files in another thread, in the order in which they come. The thread is there while there is something to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[int], None], int]] = deque()  # The first is being worked on.
        self._admitted = 0  # These, and those that `do` has yet to get.

    def admit(self, opens: Callable[[], int]) -> int | None:
        """A descriptor from `opens`, which `do` must be given some time; None where there are too many, or it raises OSError."""
        with self._lock:
            if self._admitted >= ASIDE_MAX:
                return None
            self._admitted += 1
        try:
            return opens()
        except OSError:
            with self._lock:
                self._admitted -= 1
            return None

    def do(self, work: Callable[[int], None], descriptor: int) -> None:
        """Call `work` with the admitted descriptor some time, and close that. Nobody hears of an OSError."""
        with self._lock:
            self._waiting.append((work, descriptor))
            if len(self._waiting) > 1:
                return
        try:
            threading.Thread(target=self._run, name=ASIDE, daemon=True).start()
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


def _reserve(descriptor: int, position: int, length: int) -> bool:
    """Set blocks aside without a change of the file's size; whether the system did. Python's own call would make the file longer."""
    return _fallocate is not None and _fallocate(descriptor, FALLOC_FL_KEEP_SIZE, position, length) == 0


_fallocate = from_c_library("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_sync_file_range = from_c_library("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _boot_id() -> str:
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
