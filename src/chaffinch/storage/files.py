"""What storage asks of a file system, and the errors it raises: the seam between the logs and the disk.

Two implementations exist: `file_system.DiskFileSystem` and `memory_files.MemoryFileSystem`. Everything above is written against
the protocols here, so that a simulated disk can tear writes and lose power under the very code that runs in production.

Paths are relative to the root of the file system, their parts joined by "/"; "" is the root itself.
A file system and its files belong to one thread at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

BytesLike = bytes | bytearray | memoryview
Names = list[str]
NEW_SUFFIX = ".new"
"""Of a file that is not all written yet, or that an error has left so."""
CLOSED_TEXT = "the file was closed"


class StorageError(Exception):
    """A file operation failed, or what the files say is wrong.

    path: as the user knows it (absolute on a disk). operation: a verb, such as "append". reason: one line.
    error_number: the operating system's errno, where there was one.
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
    """Another holder has the lock; `holder` is what it wrote about itself (a process id), or None when it wrote nothing."""

    def __init__(self, path: str, holder: str | None) -> None:
        super().__init__(path, "lock", f"it is in use by process {holder}" if holder else "it is in use by another process")
        self.holder = holder


class CorruptLog(StorageError):
    """A file holds bytes that were not written by us, at a place where a torn write cannot explain them. `position` is in bytes.

    `is_loss`: what is missing or damaged lies at an end, so that the broker can start without it.
    """

    def __init__(self, path: str, position: int, reason: str, *, is_loss: bool = False) -> None:
        super().__init__(path, "recover", f"at byte {position}: {reason}")
        self.position = position
        self.is_loss = is_loss


class MissingLog(StorageError):
    """A log or journal that a directory in use must have is not there: it was lost, and nothing was made in its place."""


class NewerFormat(StorageError):
    """A file of a format that a later version of Chaffinch has written, and this one does not know. Nothing was changed."""

    def __init__(self, path: str, version: int, known: int) -> None:
        super().__init__(path, "read", f"it has format version {version}, this Chaffinch knows versions up to {known}: use a newer one")


class Lock(Protocol):
    """Held until `release`, or until the process ends in whatever way. `cluster_id`: of the last cluster that was noted; "" before."""

    cluster_id: str

    def note_cluster(self, cluster_id: str) -> None:
        """Note whose data the directory holds, for later processes. Nothing is raised: without the note they know less."""
        ...

    def release(self) -> None: ...


class ReadableFile(Protocol):
    """What readers need of a file. All sizes and positions are in bytes."""

    @property
    def path(self) -> str:
        """The path for error messages."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """At most `length` bytes; fewer only at the end of the file."""
        ...

    def descriptor(self) -> int | None:
        """The system's own, for a call that is made at once; None for a file that the system does not know."""
        ...

    def held(self) -> "HeldFile | None":
        """The same bytes until it is closed, even if this file is closed or gone by then. None as above, and where there is no descriptor
        for it."""
        ...


class HeldFile(ReadableFile, Protocol):
    """Belongs to whoever asked for it."""

    def close(self) -> None: ...


class File(ReadableFile, Protocol):
    """A file that grows at its end."""

    @property
    def size(self) -> int: ...

    def append(self, buffers: Sequence[BytesLike]) -> int:
        """Write the buffers one after another at the end, and return the position of the first byte.

        On StorageError nothing of it remains in the file; where even that could not be had, the file refuses every later append.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once the bytes survive a loss of power. After a failure the file refuses every later append and sync, when it is opened
        again too: the system tells of lost bytes once. A file that takes its name is another one.

        Of bytes that were written before the file was last opened, success says only that they are on disk or cannot be read any more:
        once nobody has a file open, the system may forget that it lost some.
        """
        ...

    def note_synced(self) -> None:
        """The caller has synced the whole file system since the last append."""
        ...

    def note_unsynced(self) -> None:
        """A process that has ended wrote the file and may not have synced it: the next `sync` believes nothing that it alone says."""
        ...

    def write_back(self, position: int) -> None:
        """Ask the system to begin writing what stands from `position` on, without waiting: a later `sync` then has less to do."""
        ...

    def reserve(self, length: int) -> None:
        """Ask the system to set aside room for the next `length` bytes; 0 gives back what is left of it, and so does `close`.

        The size does not change. Appends get quicker, and find the room even if the disk is full by then. Nobody hears of a refusal.
        """
        ...

    def close(self) -> None:
        """The last use: every later one raises StorageError."""
        ...


class FileSystem(Protocol):
    """Directories and files below one root."""

    @property
    def incarnation(self) -> str:
        """Names the time since power was last lost, or a sync failed in an earlier process: while it is the same, written bytes are there
        though never synced. "" = not known. Not before `lock`."""
        ...

    def open(self, path: str, *, create: bool = True) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> Names:
        """Names of files and directories, sorted."""
        ...

    def make_directory(self, directory: str) -> None:
        """With its parents; does nothing where it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, directory: str) -> None:
        """Does nothing where it does not exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Within one directory; an existing file of the new name is replaced, at one instant."""
        ...

    def sync_directory(self, directory: str) -> None:
        """Make created, renamed and removed names durable."""
        ...

    def sync_all(self) -> None:
        """Make everything durable, bytes and names: for many files much cheaper than one sync each. Waits for what other programs have
        written to the same disk, too.

        Raises StorageError too where a sync of any kind has failed before (the system tells of lost bytes only once, and then not here),
        where nobody holds a lock, and on a kind of file system whose success would say nothing. Then each file has to be synced by itself.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock of that name, or raise AlreadyLocked at once. A holder that is killed gives it back.

        After a holder of whose syncs one has failed, files are read anew from the disk, and `incarnation` is another one. StorageError
        is raised once if the disk refuses bytes then.
        """
        ...

    def describe(self, path: str) -> str:
        """The path as the user knows it."""
        ...


def sync_directories(file_system: FileSystem, directory: str) -> None:
    """Make the names in `directory` durable, and the directory itself: its name stands in its parent, and so on up to the root."""
    while directory:
        file_system.sync_directory(directory)
        directory = directory.rpartition("/")[0]
    file_system.sync_directory("")


def write_atomically(file_system: FileSystem, path: str, buffers: Sequence[BytesLike], *, syncs: bool) -> None:
    """Write a file, and only then give it its name, which another file may have had: nobody ever finds it in part. The name is not synced.
    Raises StorageError."""
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
    """Each, whatever becomes of the others. Raises the first StorageError."""
    failures = []
    for step in steps:
        try:
            step()
        except StorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def try_sync_all(file_system: FileSystem) -> bool:
    """Sync everything; False where that failed: then each file has to be synced by itself."""
    try:
        file_system.sync_all()
    except StorageError:
        return False
    return True
