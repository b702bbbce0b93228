"""Deadlines of groups and members, without a clock: the time is handed in.

Most deadlines are put off again and again (each heartbeat puts off its member's). So the heap has one entry per key at most, which may be
too early; it is put right when it comes up.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class TimerKind(IntEnum):
    """What is due. Order of those due at the same instant within one group."""

    SESSION = 0
    """A member was not heard of."""
    JOIN = 1
    """The members of a rebalance have joined, or had time enough to."""
    SYNC = 2
    """The members of a generation have fetched their assignments, or had time enough to."""
    REVOCATION = 3
    """A member of a consumer group had time enough to give partitions back."""


class TimerKey(NamedTuple):
    """Whose deadline it is; `member_id` is empty for the group's own."""

    group_id: str
    kind: TimerKind
    member_id: str = ""


class Timers:
    """At most one deadline per key (ms since 1970)."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._queued: dict[TimerKey, int] = {}  # The earliest entry of the heap for each key.
        self._heap: list[tuple[int, TimerKey]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def get(self, key: TimerKey) -> int | None:
        return self._deadlines.get(key)

    def schedule(self, key: TimerKey, deadline_ms: int) -> None:
        """In place of the key's earlier deadline."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        """Nothing happens if there is none. The entry in the heap goes when it comes up, or when such are the larger part."""
        self._deadlines.pop(key, None)
        if len(self._heap) > 64 + 2 * len(self._deadlines):
            self._heap = [(deadline_ms, key) for key, deadline_ms in self._deadlines.items()]
            heapq.heapify(self._heap)
            self._queued = dict(self._deadlines)

    @property
    def next_deadline_ms(self) -> int | None:
        """May be early, never late."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> TimerKey | None:
        """A key whose deadline has come, the earliest first; its deadline is forgotten. None when there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # An earlier one was put in after it.
            del self._queued[key]
            deadline_ms = self._deadlines.get(key)
            if deadline_ms is None:
                continue
            if deadline_ms <= now_ms:
                del self._deadlines[key]
                return key
            self._push(key, deadline_ms)
        return None

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, key))
