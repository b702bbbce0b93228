"""Timers and scheduled tasks: deadlines by key, without a clock of their own; the time is passed in.

Most deadlines are postponed repeatedly (each heartbeat postpones its member's, each end of a transaction its transactional id's). The heap
therefore has one live entry per key, which may be too early and is corrected when it is popped. Replaced entries are removed when they are
the larger part of the heap, so it is never much larger than the number of keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from chaffinch.broker.core.events import LogLine

Key = TypeVar("Key", bound=Hashable)
STALE_MAX = 64


class Timers(Generic[Key]):
    """At most one deadline per key (steady ms). Equal deadlines are returned in the order of their keys."""

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}  # The live heap entry of each key.
        self._heap: list[tuple[int, Any]] = []

    def get(self, key: Key) -> int | None:
        return self._deadlines.get(key)

    def schedule(self, key: Key, deadline_ms: int) -> None:
        """Set the key's deadline, replacing an earlier one."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(key, deadline_ms)
            self._tidy()

    def cancel(self, key: Key) -> None:
        """Remove the key's deadline, if there is one."""
        self._deadlines.pop(key, None)
        self._tidy()

    @property
    def next_deadline_ms(self) -> int | None:
        """May be early, never late."""
        return self._heap[0][0] if self._heap else None

    def due(self, steady_ms: int) -> Key | None:
        """Remove and return the key with the earliest passed deadline; None if there is none."""
        while self._heap and self._heap[0][0] <= steady_ms:
            queued_ms, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # Replaced by an earlier entry.
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
    """A part of the broker that `BrokerCore` calls when its deadline is reached."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `run_due` has work to do (steady ms), None for never. Read after every request, so it must be cheap. May be early."""

    def run_due(self, steady_ms: int) -> Sequence[str | LogLine]:
        """Do the work that is due, in short slices: if more is left, the next deadline is immediate. Returns lines to log; a plain text is
        logged as a warning.

        Never raises StorageError: work that a full disk prevents is due again later.
        """


def next_deadline_ms(scheduled_tasks: Sequence[ScheduledTask]) -> int | None:
    """The earliest deadline of all tasks."""
    earliest: int | None = None
    for task in scheduled_tasks:
        deadline_ms = task.next_deadline_ms
        if deadline_ms is not None and (earliest is None or deadline_ms < earliest):
            earliest = deadline_ms
    return earliest
