"""What a process of Spark's keeps because it is dear to make or to open: the few things that were used last."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")

KEPT_MAX: Final = 4
"""A worker serves the queries of one session one after the other; each has one set of options, a replay or a test a few."""


class Kept(Generic[Key, Thing]):
    """Things by what they are made of. Belongs to the one thread that a worker runs tasks on, so what falls out is not in use."""

    def __init__(self, close: Callable[[Thing], object], *, count_max: int = KEPT_MAX) -> None:
        self._close = close
        self._count_max = count_max
        self._things: dict[Key, Thing] = {}

    def __len__(self) -> int:
        return len(self._things)

    def get(self, key: Key, make: Callable[[], Thing]) -> Thing:
        """The thing of this key, made if there is none; one that was not asked for the longest is closed where there are too many."""
        thing = self._things.pop(key) if key in self._things else make()
        self._things[key] = thing
        while len(self._things) > self._count_max:
            self.forget(next(iter(self._things)))
        return thing

    def forget(self, key: Key) -> None:
        """Closes it, if it is there."""
        if key in self._things:
            self._close(self._things.pop(key))

    def clear(self) -> None:
        """Closes all."""
        for key in list(self._things):
            self.forget(key)
