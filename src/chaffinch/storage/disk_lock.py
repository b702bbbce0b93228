"""Lock of a data directory. Its file also records for the next process whether a sync has failed.

Linux reports a write error once and keeps the unwritten bytes in memory as if they were on disk. A process that starts later reads them,
and its own syncs succeed. So the process that receives the error records it in the lock file, over the existing text, which takes no space.
The next process first drops the page cache of all files and so reads what is on disk. The record need not survive a loss of power, which
drops the cache as well. There is no record if a process is killed inside the sync that fails, or if the record cannot be written.

Two locks are taken: on the directory, because the file may be deleted while it is locked, and on the file, because earlier versions check
only the file. Where a file system cannot lock a directory (NFS), only the file counts.

The file has up to three lines: the process id of its holder; the number of processes that recorded a failed sync, and for how many of them
the files have since been reread; the id of the cluster whose data the directory holds. The third distinguishes an emptied directory from
one whose first start was interrupted.
"""

import fcntl
import logging
import os
import stat
from contextlib import suppress

from chaffinch.storage.files import AlreadyLocked, StorageError
from chaffinch.storage.syncfs import Syncfs

LOGGER = logging.getLogger(__name__)
TEXT_BYTES_MAX = 100
FILE_MODE = 0o600
CLUSTER_LINE = 2


class DiskLock:
    """An flock, which the kernel releases when the process ends, SIGKILL included. `losses`: number of processes that saw a failed sync.

    Raises AlreadyLocked, OSError.
    """

    def __init__(self, path: str, syncfs: Syncfs) -> None:
        self._path = path
        self._syncfs = syncfs
        self._directory = _locked_directory(path)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except BaseException:
            os.close(self._directory)
            raise
        try:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyLocked(path, _holder(path)) from None
            lines = self._lines()
            self.losses, self._handled_losses = _counts(lines)
            self.cluster_id = lines[CLUSTER_LINE] if len(lines) > CLUSTER_LINE + 1 else ""
            self._write()
            syncfs.begin()
        except BaseException:
            os.close(self._descriptor)
            os.close(self._directory)
            raise

    def _lines(self) -> list[str]:
        return os.pread(self._descriptor, TEXT_BYTES_MAX, 0).decode("ascii", "replace").split("\n")

    def _write(self) -> None:
        counts = f"{self.losses} {self._handled_losses}\n" if self.losses or self.cluster_id else ""
        cluster = f"{self.cluster_id}\n" if self.cluster_id else ""
        text = f"{os.getpid()}\n{counts}{cluster}".encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def note_loss(self) -> None:
        """Record a failed sync. Raises OSError: then the next process will not know about it."""
        if self._descriptor >= 0:
            self.losses += 1
            self._write()

    def note_cluster(self, cluster_id: str) -> None:
        if self._descriptor >= 0 and cluster_id != self.cluster_id:
            self.cluster_id = cluster_id
            try:
                self._write()
            except OSError as error:
                LOGGER.warning("cannot record in %s that its directory is in use: %s", self._path, error.strerror)

    def reread_after_losses(self, root: str) -> None:
        """After a loss recorded by an earlier process: drop the page cache of all files below `root`, so that reads return what is on
        disk.

        Raises StorageError and OSError after trying all files, because the system reports the loss of each file once. Then call it again.
        """
        if self._handled_losses == self.losses:
            return
        if self._syncfs.is_reliable:
            with suppress(OSError):  # The error is reported to this process as well.
                self._syncfs.sync()
        refused: StorageError | None = None
        for directory, _, names in os.walk(root):
            for name in names:
                path = f"{directory}/{name}"
                if path != self._path and stat.S_ISREG(os.lstat(path).st_mode):
                    try:
                        _drop_page_cache(path)
                    except PermissionError:
                        pass  # Then this process cannot read it either.
                    except StorageError as error:
                        refused = refused or error
        if refused is not None:
            raise refused
        self._handled_losses = self.losses
        self._write()

    def release(self) -> None:
        if self._descriptor >= 0:
            self._syncfs.end()
            os.close(self._descriptor)
            os.close(self._directory)
            self._descriptor = -1


def _locked_directory(path: str) -> int:
    """A descriptor of the directory that contains `path`, locked where that is possible. Raises AlreadyLocked, OSError."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyLocked(path, _holder(path)) from None
    except OSError as error:
        LOGGER.warning("%s cannot be locked (%s): do not delete %s", os.path.dirname(path), error.strerror, path)
    return descriptor


def _holder(path: str) -> str | None:
    """The process id that the lock's holder wrote, if the file still exists."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_BYTES_MAX).decode("ascii", "replace").split("\n")[0].strip() or None
    except OSError:
        return None


def _counts(lines: list[str]) -> tuple[int, int]:
    try:
        losses, handled = map(int, lines[1].split())
    except (IndexError, ValueError):
        return 0, 0
    return losses, handled


def _drop_page_cache(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)  # Dirty pages would stay in the cache.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        reason = f"the disk refused bytes of an earlier process ({error.strerror}); the next start continues with what is on disk"
        raise StorageError(path, "sync", reason, error_number=error.errno) from error
    finally:
        os.close(descriptor)
