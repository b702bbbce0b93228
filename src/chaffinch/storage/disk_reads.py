"""Reading files of the disk, those too that have had their last use: what they take must not be freed as long as somebody reads them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from chaffinch.storage.files import StorageError


def storage_error(path: str, operation: str, error: OSError) -> StorageError:
    """In the storage's words."""
    return StorageError(path, operation, error.strerror or str(error), error_number=error.errno)


def read(path: str, descriptor: int, position: int, length: int) -> bytes:
    """Up to so many bytes, fewer only where the file ends."""
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
"""Descriptors that go at most into files which somebody holds."""


class FileId(NamedTuple):
    """Which file it is, whatever its path: another one may have that by now. Nobody else's as long as a descriptor of it is open."""

    device: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileId:
        return cls(found.st_dev, found.st_ino)


class HeldFiles:
    """Who holds which file, and what is to be done when nobody does any more."""

    def __init__(self) -> None:
        self._files: dict[FileId, _Shared] = {}
        self._postponed: defaultdict[FileId, list[Callable[[], None]]] = defaultdict(list)

    def hold(self, path: str, descriptor: int) -> HeldDiskFile | None:
        """However many hold a file, it takes one descriptor. None where there is none left, or too many are held."""
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
        """One less holds it."""
        shared.hold_count -= 1
        if shared.hold_count:
            return
        del self._files[shared.key]
        os.close(shared.descriptor)
        for work in self._postponed.pop(shared.key, ()):
            work()

    def run_when_free(self, key: FileId, work: Callable[[], None]) -> None:
        """Now, or when the last has let go of that file."""
        if key in self._files:
            self._postponed[key].append(work)
        else:
            work()


class _Shared:
    """A file that somebody holds."""

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
