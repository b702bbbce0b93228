"""Data directory of a broker: checks owner, format version, damage and lock before use.

`chaffinch.meta` has three lines: format version, cluster id, CRC-32C of these two. A directory with other files and without it belongs to
another program and is not touched. While a directory is being created the file is called `chaffinch.meta.new`. `complete` renames it once
everything that a directory in use must have is durable. So a file that is missing later was lost, rather than never created.

Version 2 has compacted logs, logs whose start has moved (`log_state`), and journals of groups. A directory of version 1 is one of version 2
without these. Opening it writes the new version first, so that no older Chaffinch opens it afterwards.

Version 3 records what it must contain (`contents`). `complete` upgrades an older directory once those records are durable.
"""

import logging
from dataclasses import dataclass

from chaffinch.records.checksum import crc32c
from chaffinch.storage.files import AlreadyLocked, FileSystem, Lock, MissingLog, StorageError

LOGGER = logging.getLogger(__name__)
META_NAME = "chaffinch.meta"
NEW_META_NAME = META_NAME + ".new"
LOCK_NAME = ".lock"
FORMAT_VERSION = 3
CONTENTS_VERSION = 3
"""From this version on a directory has a contents journal."""
COMPACTION_VERSION = 2
"""From this version on logs may be compacted. An older directory is upgraded when it is opened."""
META_BYTES_MAX = 4096
USED_NAMES = ("journals/cluster.journal", "journals/contents.journal")
"""A directory with one of these files was used by Chaffinch."""
NOT_FOREIGN = frozenset({LOCK_NAME, "lost+found"})


class DataDirectoryError(StorageError):
    """The directory cannot be used as it is. Nothing in it was changed, except the lock file."""


class DamagedDirectory(DataDirectoryError):
    """The meta file, which every directory in use has, is missing or damaged."""


class EmptiedDirectory(MissingLog):
    """The directory held data before and is empty now."""


@dataclass(slots=True, kw_only=True)
class DataDirectory:
    """An opened and locked directory.

    `is_new`: `complete` was not called yet. `format_version` is that of the files in it. Call `complete` once the directory has everything
    that the newest version requires.
    """

    cluster_id: str
    format_version: int
    is_new: bool
    lock: Lock
    file_system: FileSystem

    @classmethod
    def open(cls, file_system: FileSystem, *, cluster_id: str, accepts_loss: bool = False) -> "DataDirectory":
        """Lock the root of `file_system` and read its metadata. An empty directory is initialised with `cluster_id`, which is otherwise
        unused.

        `accepts_loss`: treat a directory that was emptied as an empty one. Raises AlreadyLocked (with the holder's process id),
        EmptiedDirectory, DataDirectoryError (foreign, damaged, of a newer format), StorageError (not writable).
        """
        file_system.make_directory("")
        foreign = _foreign_names(file_system)
        if any(file_system.exists(name) for name in USED_NAMES) and foreign:
            raise DamagedDirectory(file_system.describe(META_NAME), "use", "the file is missing, though the directory was in use")
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise DataDirectoryError(
                file_system.describe(""), "use", f"it is not empty ({shown}) and has no {META_NAME}: not a Chaffinch data directory"
            )
        lock = _locked(file_system)
        try:
            is_new = not file_system.exists(META_NAME)
            if is_new and lock.cluster_id and not accepts_loss:
                reason = f"it was emptied: according to its {LOCK_NAME} it held the data of cluster {lock.cluster_id}"
                raise EmptiedDirectory(file_system.describe(""), "use", reason)
            if is_new:
                _write_meta(file_system, cluster_id, FORMAT_VERSION)
            version, cluster_id = _read(file_system, NEW_META_NAME if is_new else META_NAME)
            if version < COMPACTION_VERSION and not is_new:
                version = COMPACTION_VERSION
                _write_meta(file_system, cluster_id, version)
                _publish_meta(file_system)
            if not is_new:
                lock.note_cluster(cluster_id)
            return cls(cluster_id=cluster_id, format_version=version, is_new=is_new, lock=lock, file_system=file_system)
        except BaseException:
            lock.release()
            raise

    def complete(self) -> None:
        """Mark the directory as in use: from now on a missing file is an error. Durable on return."""
        if self.format_version < FORMAT_VERSION:
            _write_meta(self.file_system, self.cluster_id, FORMAT_VERSION)
        elif not self.is_new:
            return
        _publish_meta(self.file_system)
        lost = self.lock.cluster_id if self.is_new else ""
        self.lock.note_cluster(self.cluster_id)
        if lost:
            text = "%s was emptied: all data of cluster %s are lost, and cluster %s is created: the loss is accepted"
            LOGGER.warning(text, self.file_system.describe(""), lost, self.cluster_id)
        self.is_new, self.format_version = False, FORMAT_VERSION

    @property
    def has_contents_journal(self) -> bool:
        """Whether the directory has a complete contents journal."""
        return self.format_version >= CONTENTS_VERSION and not self.is_new

    def close(self) -> None:
        self.lock.release()


def _foreign_names(file_system: FileSystem) -> list[str]:
    names = file_system.list("")
    is_ours = META_NAME in names or NEW_META_NAME in names
    return [] if is_ours else [name for name in names if name not in NOT_FOREIGN]


def _locked(file_system: FileSystem) -> Lock:
    try:
        return file_system.lock(LOCK_NAME)
    except AlreadyLocked as error:
        raise AlreadyLocked(file_system.describe(""), error.holder) from error
    except StorageError as error:
        if error.operation != "lock":  # The disk refuses bytes that were written earlier.
            raise
        raise DataDirectoryError(file_system.describe(""), "use", f"it is not writable: {error.reason}") from error


def _write_meta(file_system: FileSystem, cluster_id: str, version: int) -> None:
    """Write the meta file of this version under its temporary name."""
    if file_system.exists(NEW_META_NAME):
        file_system.remove(NEW_META_NAME)
    file = file_system.open(NEW_META_NAME)
    try:
        text = _body(version, cluster_id)
        file.append((text, b"crc32c=%08x\n" % crc32c(text)))
        file.sync()
    finally:
        file.close()
    file_system.sync_directory("")


def _publish_meta(file_system: FileSystem) -> None:
    """Rename the meta file to its final name, atomically; durable on return."""
    file_system.rename(NEW_META_NAME, META_NAME)
    file_system.sync_directory("")


def _body(version: int, cluster_id: str) -> bytes:
    return f"format.version={version}\ncluster.id={cluster_id}\n".encode()


def _read(file_system: FileSystem, name: str) -> tuple[int, str]:
    path = file_system.describe(name)
    file = file_system.open(name, create=False)
    try:
        data = file.read(0, META_BYTES_MAX)
    finally:
        file.close()
    body, separator, crc = data.rpartition(b"crc32c=")
    if not separator or crc.strip() != b"%08x" % crc32c(body):
        raise DamagedDirectory(path, "use", "the file is damaged: its CRC does not match its contents")
    fields = dict(line.split("=", 1) for line in body.decode().splitlines())
    version = int(fields["format.version"])
    if version > FORMAT_VERSION:
        raise DataDirectoryError(
            path,
            "use",
            f"the directory has format version {version}, this Chaffinch supports versions up to {FORMAT_VERSION}: use a newer one",
        )
    return version, fields["cluster.id"]
