"""What a process of Spark's keeps because it is dear to make or to open: the few things that were used last."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

ENTRIES_MAX: Final = 4
"""A worker serves the queries of one session one after the other; each has one set of options, a replay or a test a few."""


class LruCache(Generic[Key, Value]):
    """Things by what they are made of. Belongs to the one thread that a worker runs tasks on, so what falls out is not in use."""

    def __init__(self, close: Callable[[Value], object], *, count_max: int = ENTRIES_MAX) -> None:
        self._close = close
        self._count_max = count_max
        self._entries: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The thing of this key, made if there is none; one that was not asked for the longest is closed where there are too many."""
        value = self._entries.pop(key) if key in self._entries else make()
        self._entries[key] = value
        while len(self._entries) > self._count_max:
            self.forget(next(iter(self._entries)))
        return value

    def forget(self, key: Key) -> None:
        """Closes it, if it is there."""
        if key in self._entries:
            self._close(self._entries.pop(key))

    def clear(self) -> None:
        """Closes all."""
        for key in list(self._entries):
            self.forget(key)
