"""Reading files of the disk, those too that have had their last use: what they take must not be freed as long as somebody reads them."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable

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


class Holders:
    """How many hold a file, by its path, and what is to be done when nobody does any more."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._postponed: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    def hold(self, path: str, descriptor: int) -> HeldDiskFile | None:
        """None where the process has no descriptor left."""
        try:
            held = HeldDiskFile(self, path, os.dup(descriptor))
        except OSError:
            return None
        self._counts[path] += 1
        return held

    def let_go(self, path: str) -> None:
        self._counts[path] -= 1
        if not self._counts[path]:
            del self._counts[path]
            for work in self._postponed.pop(path, ()):
                work()

    def when_free(self, path: str, work: Callable[[], None]) -> None:
        """Now, or when the last has let go of what was to be found there."""
        if path in self._counts:
            self._postponed[path].append(work)
        else:
            work()


class HeldDiskFile:
    """Has a descriptor of its own. See `HeldFile`."""

    __slots__ = ("_descriptor", "_holders", "path")

    def __init__(self, holders: Holders, path: str, descriptor: int) -> None:
        self.path = path
        self._holders = holders
        self._descriptor = descriptor

    def read(self, position: int, length: int) -> bytes:
        return read(self.path, self._descriptor, position, length)

    def descriptor(self) -> int:
        return self._descriptor

    def held(self) -> HeldDiskFile | None:
        return self._holders.hold(self.path, self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
        self._holders.let_go(self.path)
