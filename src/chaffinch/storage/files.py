"""File system interface of the storage engine, and its errors.

Two implementations exist: `file_system.DiskFileSystem` and `memory_files.MemoryFileSystem`. All code above uses only these protocols, so
that a simulated disk can tear writes and lose power under the code that runs in production.

Paths are relative to the root of the file system, their parts joined by "/"; "" is the root itself. A file system and its files belong to
one thread at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from chaffinch.public_names import exported_from

BytesLike = bytes | bytearray | memoryview
Names = list[str]
NEW_SUFFIX = ".new"
"""Suffix of a file that is not completely written, perhaps because of an error."""
CLOSED_TEXT = "the file was closed"


@exported_from("chaffinch")
class StorageError(Exception):
    """A file operation failed, or the contents of a file are wrong.

    path: as the user knows it (absolute on a disk). operation: a verb, such as "append". reason: one line. error_number: the operating
    system's errno, if there was one.
    """

    def __init__(self, path: str, operation: str, reason: str, *, error_number: int | None = None) -> None:
        super().__init__(path, operation, reason)
        self.path = path
        self.operation = operation
        self.reason = reason
        self.error_number = error_number

    def __str__(self) -> str:
        return f"cannot {self.operation} {self.path}: {self.reason}"


class AlreadyLocked(StorageError):
    """Another process has the lock; `holder` is the process id that it wrote, or None if it wrote nothing."""

    def __init__(self, path: str, holder: str | None) -> None:
        super().__init__(path, "lock", f"it is in use by process {holder}" if holder else "it is in use by another process")
        self.holder = holder


class CorruptLog(StorageError):
    """A file holds bytes that were not written by us, at a place where a torn write cannot explain them. `position` is in bytes.

    `is_loss`: the missing or damaged part is at an end, so that the broker can start without it.
    """

    def __init__(self, path: str, position: int, reason: str, *, is_loss: bool = False) -> None:
        super().__init__(path, "recover", f"at byte {position}: {reason}")
        self.position = position
        self.is_loss = is_loss


class MissingLog(StorageError):
    """A log or journal that a directory in use must have is missing. Nothing was created in its place."""


class NewerFormat(StorageError):
    """A file in a format that a later version of Chaffinch wrote and this one does not know. Nothing was changed."""

    def __init__(self, path: str, version: int, known: int) -> None:
        super().__init__(path, "read", f"it has format version {version}, this Chaffinch supports versions up to {known}: use a newer one")


class Lock(Protocol):
    """Held until `release`, or until the process ends in any way. `cluster_id`: the last recorded cluster; "" before the first."""

    cluster_id: str

    def note_cluster(self, cluster_id: str) -> None:
        """Record the cluster whose data the directory holds, for later processes. Raises nothing: without the record they know less."""
        ...

    def release(self) -> None: ...


class ReadableFile(Protocol):
    """A file as readers use it. All sizes and positions are in bytes."""

    @property
    def path(self) -> str:
        """The path for error messages."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """At most `length` bytes; fewer only at the end of the file."""
        ...

    def descriptor(self) -> int | None:
        """The operating system's descriptor, for an immediate call; None for a file that the system does not know."""
        ...

    def held(self) -> "HeldFile | None":
        """The same bytes, readable until the result is closed, even if this file is closed or removed first.

        None as for `descriptor`, and if no descriptor is left.
        """
        ...


class HeldFile(ReadableFile, Protocol):
    """A held file, which the caller must close."""

    def close(self) -> None: ...


class File(ReadableFile, Protocol):
    """A file that grows at its end."""

    @property
    def size(self) -> int: ...

    def append(self, buffers: Sequence[BytesLike]) -> int:
        """Write the buffers one after another at the end, and return the position of the first byte.

        After StorageError none of these bytes remain in the file. If even that failed, the file refuses every later append.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once the bytes survive a loss of power.

        After a failure the file refuses every later append and sync, also when it is reopened: the system reports lost bytes once. A file
        that later takes its name is not affected.

        For bytes written before the file was last opened, success means only that they are on disk or no longer readable: once no
        descriptor of a file is open, the system may forget that it lost some.
        """
        ...

    def note_synced(self) -> None:
        """The caller has synced the whole file system since the last append."""
        ...

    def note_unsynced(self) -> None:
        """An earlier process wrote the file and may not have synced it: the next `sync` does not rely on its own success alone."""
        ...

    def write_back(self, position: int) -> None:
        """Ask the system to start writing the bytes from `position` on, without waiting: a later `sync` then has less to do."""
        ...

    def reserve(self, length: int) -> None:
        """Preallocate blocks for the next `length` bytes; 0 releases those not yet used, and so does `close`.

        The size does not change. Appends get faster, and succeed even if the disk is full by then. Failures are ignored.
        """
        ...

    def close(self) -> None:
        """Close the file: every later use raises StorageError."""
        ...


class FileSystem(Protocol):
    """Directories and files below one root."""

    @property
    def incarnation(self) -> str:
        """Identifies the time since power was last lost, or since a sync failed in an earlier process.

        While it is the same, written bytes are present even if they were never synced. "" = unknown. Valid after `lock`.
        """
        ...

    def open(self, path: str, *, create: bool = True) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> Names:
        """Names of files and directories, sorted."""
        ...

    def make_directory(self, directory: str) -> None:
        """Create a directory with its parents; no-op if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, directory: str) -> None:
        """Remove a directory with its contents; no-op if it does not exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename within one directory; replaces an existing file atomically."""
        ...

    def sync_directory(self, directory: str) -> None:
        """Make created, renamed and removed names durable."""
        ...

    def sync_all(self) -> None:
        """Make everything durable, bytes and names: for many files much cheaper than one sync each. It also waits for writes of other
        programs to the disk.

        Raises StorageError too if any sync failed before (the system reports lost bytes only once, and then not here), without a lock, and
        on a kind of file system whose success means nothing. Then each file must be synced individually.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock of that name, or raise AlreadyLocked at once. The lock of a killed process is released.

        If a sync of the previous holder failed, files are reread from the disk, and `incarnation` changes. Raises StorageError once if the
        disk refuses bytes then.
        """
        ...

    def describe(self, path: str) -> str:
        """The path as the user knows it."""
        ...


def sync_directories(file_system: FileSystem, directory: str) -> None:
    """Make the names in `directory` durable, and the names of the directory and its parents, up to the root."""
    while directory:
        file_system.sync_directory(directory)
        directory = directory.rpartition("/")[0]
    file_system.sync_directory("")


def write_atomically(file_system: FileSystem, path: str, buffers: Sequence[BytesLike], *, syncs: bool) -> None:
    """Write a file under a temporary name, then rename it to `path`, atomically. The name is not synced. Raises StorageError."""
    temporary = path + NEW_SUFFIX
    if file_system.exists(temporary):
        file_system.remove(temporary)
    file = file_system.open(temporary)
    try:
        file.append(buffers)
        if syncs:
            file.sync()
    finally:
        file.close()
    file_system.rename(temporary, path)


def run_all(steps: Iterable[Callable[[], None]]) -> None:
    """Run all steps, even if some fail. Raises the first StorageError."""
    failures = []
    for step in steps:
        try:
            step()
        except StorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def try_sync_all(file_system: FileSystem) -> bool:
    """Sync everything; False if that failed, and each file must be synced individually."""
    try:
        file_system.sync_all()
    except StorageError:
        return False
    return True
