"""Work that becomes due by the clock and not by a request: deadlines by key, and chores. Without a clock: the time is handed in.

Most deadlines are put off again and again (each heartbeat puts off its member's, each end its transactional id's). So the heap has one
live entry per key, which may be too early; it is put right when it comes up. Entries that an earlier one has replaced go when they are the
larger part: the heap is never much larger than the number of keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from chaffinch.broker.core.events import LogLine

Key = TypeVar("Key", bound=Hashable)
STALE_MAX = 64


class Timers(Generic[Key]):
    """At most one deadline per key (steady ms). Keys of the same deadline come in their own order."""

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}  # The live entry of the heap for each key.
        self._heap: list[tuple[int, Any]] = []

    def get(self, key: Key) -> int | None:
        return self._deadlines.get(key)

    def schedule(self, key: Key, deadline_ms: int) -> None:
        """In place of the key's earlier deadline."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(key, deadline_ms)
            self._tidy()

    def cancel(self, key: Key) -> None:
        """Nothing happens if there is none."""
        self._deadlines.pop(key, None)
        self._tidy()

    @property
    def next_deadline_ms(self) -> int | None:
        """May be early, never late."""
        return self._heap[0][0] if self._heap else None

    def due(self, steady_ms: int) -> Key | None:
        """A key whose deadline has come, the earliest first; its deadline is forgotten. None when there is none."""
        while self._heap and self._heap[0][0] <= steady_ms:
            queued_ms, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # An earlier one was put in after it.
            del self._queued[key]
            deadline_ms = self._deadlines.get(key)
            if deadline_ms is None:
                continue
            if deadline_ms <= steady_ms:
                del self._deadlines[key]
                found: Key = key
                return found
            self._push(key, deadline_ms)
        return None

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, key))

    def _tidy(self) -> None:
        if len(self._heap) > STALE_MAX + 2 * len(self._deadlines):
            self._heap = [(deadline_ms, key) for key, deadline_ms in self._deadlines.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._deadlines)


class ScheduledTask(Protocol):
    """Part of the broker that `BrokerCore` calls when its time has come."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do (steady ms), None for never. Asked for after every request: no work here. May be early."""

    def expire(self, steady_ms: int) -> Sequence[str | LogLine]:
        """Do what is due, in short: long work is cut into slices, with the next one due at once. Returns lines for the log: a text is a
        warning.

        Never raises StorageError: what a full disk prevents is due again later.
        """


def next_deadline_ms(scheduled_tasks: Sequence[ScheduledTask]) -> int | None:
    """The earliest deadline of all."""
    earliest: int | None = None
    for task in scheduled_tasks:
        deadline_ms = task.next_deadline_ms
        if deadline_ms is not None and (earliest is None or deadline_ms < earliest):
            earliest = deadline_ms
    return earliest
