"""Reads from disk files, and holds that keep a file's bytes until all readers have closed it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from chaffinch.storage.files import StorageError


def storage_error(path: str, operation: str, error: OSError) -> StorageError:
    """The OSError as a StorageError."""
    return StorageError(path, operation, error.strerror or str(error), error_number=error.errno)


def read(path: str, descriptor: int, position: int, length: int) -> bytes:
    """Read up to `length` bytes; fewer only at the end of the file."""
    try:
        data = os.pread(descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = []
        while data:
            parts.append(data)
            position, length = position + len(data), length - len(data)
            data = os.pread(descriptor, length, position)
        return b"".join(parts)
    except OSError as error:
        raise storage_error(path, "read", error) from error


HELD_MAX: Final = 256
"""Maximum number of descriptors used for held files."""


class FileId(NamedTuple):
    """Identity of a file, independent of its path, which another file may have by now. Unique while a descriptor of it is open."""

    device: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileId:
        return cls(found.st_dev, found.st_ino)


class HeldFiles:
    """Files that readers hold, and the work postponed until the last hold is released."""

    def __init__(self) -> None:
        self._files: dict[FileId, _Shared] = {}
        self._postponed: defaultdict[FileId, list[Callable[[], None]]] = defaultdict(list)

    def hold(self, path: str, descriptor: int) -> HeldDiskFile | None:
        """Hold a file. All holds of one file share a descriptor. None if no descriptor is left, or too many files are held."""
        try:
            key = FileId.of(os.fstat(descriptor))
            shared = self._files.get(key)
            if shared is None:
                if len(self._files) >= HELD_MAX:
                    return None
                shared = self._files[key] = _Shared(key, os.dup(descriptor))
        except OSError:
            return None
        shared.hold_count += 1
        return HeldDiskFile(self, shared, path)

    def release(self, shared: _Shared) -> None:
        """Release one hold."""
        shared.hold_count -= 1
        if shared.hold_count:
            return
        del self._files[shared.key]
        os.close(shared.descriptor)
        for work in self._postponed.pop(shared.key, ()):
            work()

    def run_when_free(self, key: FileId, work: Callable[[], None]) -> None:
        """Run `work` now, or when the last hold of the file is released."""
        if key in self._files:
            self._postponed[key].append(work)
        else:
            work()


class _Shared:
    """A held file and the number of its holds."""

    __slots__ = ("descriptor", "hold_count", "key")

    def __init__(self, key: FileId, descriptor: int) -> None:
        self.key = key
        self.descriptor = descriptor
        self.hold_count = 0


class HeldDiskFile:
    """See `HeldFile`."""

    __slots__ = ("_held_files", "_shared", "path")

    def __init__(self, held_files: HeldFiles, shared: _Shared, path: str) -> None:
        self.path = path
        self._held_files = held_files
        self._shared = shared

    def read(self, position: int, length: int) -> bytes:
        return read(self.path, self._shared.descriptor, position, length)

    def descriptor(self) -> int:
        return self._shared.descriptor

    def held(self) -> HeldDiskFile | None:
        return self._held_files.hold(self.path, self._shared.descriptor)

    def close(self) -> None:
        self._held_files.release(self._shared)
