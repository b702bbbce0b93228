"""LRU cache of expensive objects (clients, producers, handlers, open files) in a Spark Python worker."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

ENTRIES_MAX: Final = 4
"""A worker serves the queries of one session one after another. Each query has one set of options, a replay or a test a few."""


class LruCache(Generic[Key, Value]):
    """Least-recently-used cache. It belongs to the one thread that a worker runs tasks on, so an evicted value is not in use."""

    def __init__(self, close: Callable[[Value], object], *, count_max: int = ENTRIES_MAX) -> None:
        self._close = close
        self._count_max = count_max
        self._entries: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of this key, created by `make` if it is missing. Above `count_max` values the least recently used one is closed."""
        value = self._entries.pop(key) if key in self._entries else make()
        self._entries[key] = value
        while len(self._entries) > self._count_max:
            self.forget(next(iter(self._entries)))
        return value

    def forget(self, key: Key) -> None:
        """Remove and close the value of this key, if there is one."""
        if key in self._entries:
            self._close(self._entries.pop(key))

    def clear(self) -> None:
        """Remove and close all values."""
        for key in list(self._entries):
            self.forget(key)
