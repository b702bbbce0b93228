"""Reading files of the disk, those too that have had their last use: what they take must not be freed as long as somebody reads them."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

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


class Holders:
    """Who holds which file, and what is to be done with what is found under a path when nobody does any more."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int, int], _Shared] = {}  # By path, device and inode: another file may have the path by now.
        self._paths: Counter[str] = Counter()
        self._postponed: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    def hold(self, path: str, descriptor: int) -> HeldDiskFile | None:
        """However many hold a file, it takes one descriptor. None where there is none left, or too many are held."""
        try:
            found = os.fstat(descriptor)
            key = (path, found.st_dev, found.st_ino)
            shared = self._files.get(key)
            if shared is None:
                if len(self._files) >= HELD_MAX:
                    return None
                shared = self._files[key] = _Shared(key, os.dup(descriptor))
                self._paths[path] += 1
        except OSError:
            return None
        shared.holders += 1
        return HeldDiskFile(self, shared)

    def let_go(self, shared: _Shared) -> None:
        """One less holds it."""
        shared.holders -= 1
        if shared.holders:
            return
        del self._files[shared.key]
        os.close(shared.descriptor)
        path = shared.key[0]
        self._paths[path] -= 1
        if not self._paths[path]:
            del self._paths[path]
            for work in self._postponed.pop(path, ()):
                work()

    def when_free(self, path: str, work: Callable[[], None]) -> None:
        """Now, or when the last has let go of what was to be found there."""
        if path in self._paths:
            self._postponed[path].append(work)
        else:
            work()


class _Shared:
    """A file that somebody holds."""

    __slots__ = ("descriptor", "holders", "key")

    def __init__(self, key: tuple[str, int, int], descriptor: int) -> None:
        self.key = key
        self.descriptor = descriptor
        self.holders = 0


class HeldDiskFile:
    """See `HeldFile`."""

    __slots__ = ("_holders", "_shared")

    def __init__(self, holders: Holders, shared: _Shared) -> None:
        self._holders = holders
        self._shared = shared

    @property
    def path(self) -> str:
        return self._shared.key[0]

    def read(self, position: int, length: int) -> bytes:
        return read(self.path, self._shared.descriptor, position, length)

    def descriptor(self) -> int:
        return self._shared.descriptor

    def held(self) -> HeldDiskFile | None:
        return self._holders.hold(self.path, self._shared.descriptor)

    def close(self) -> None:
        self._holders.let_go(self._shared)
