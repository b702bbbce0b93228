"""Delayed responses ("purgatory" in Kafka): at most one per connection, indexed by awaited keys and by deadline.

Responses to be retried are in a queue, once each; `BrokerCore` takes a few at a time. Completed entries leave their deadline in the heap
until it is popped, or until such entries are the larger part of the heap, so that clients with many long waits do not fill the memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass

from chaffinch.broker.core.broker_state import DelayedResponse

STALE_MAX = 64
"""Completed entries that may stay in the heap whatever its size."""


@dataclass(frozen=True, slots=True)
class _Wait:
    waiting: DelayedResponse
    serial: int  # Distinguishes it from earlier entries of the same connection.


class DelayedResponses:
    """See the module docstring. Connections are identified by id."""

    def __init__(self) -> None:
        self.waits: dict[int, _Wait] = {}
        """By connection id; read-only for others."""
        self._by_key: dict[Hashable, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int, int]] = []  # (deadline, serial, connection id)
        self._serial = 0
        self.woken: dict[int, bool] = {}
        """Queue by connection id, in order; the value says whether the deadline has passed, so it is the final attempt. Read-only for
        others."""

    def __bool__(self) -> bool:
        return bool(self.waits)

    def add(self, connection_id: int, waiting: DelayedResponse) -> None:
        """Add a delayed response; the connection must have none."""
        assert connection_id not in self.waits, "a connection has one delayed response at a time"
        self._serial += 1
        self.waits[connection_id] = _Wait(waiting, self._serial)
        for key in waiting.keys:
            self._by_key.setdefault(key, {})[connection_id] = None
        if len(self._deadlines) > STALE_MAX + 2 * len(self.waits):
            self._deadlines = [entry for entry in self._deadlines if self._is_on(entry)]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (waiting.deadline_ms, self._serial, connection_id))

    def get(self, connection_id: int) -> DelayedResponse | None:
        wait = self.waits.get(connection_id)
        return None if wait is None else wait.waiting

    def end(self, connection_id: int) -> None:
        """Remove a connection's delayed response, if it has one."""
        wait = self.waits.pop(connection_id, None)
        if wait is None:
            return
        self.woken.pop(connection_id, None)
        for key in wait.waiting.keys:
            watchers = self._by_key.get(key)
            if watchers is not None:
                watchers.pop(connection_id, None)
                if not watchers:
                    del self._by_key[key]

    def wake(self, key: Hashable) -> None:
        """Queue the responses that wait for a changed key, longest wait first."""
        for connection_id in self._by_key.get(key, ()):
            self.woken.setdefault(connection_id, False)

    def wake_due(self, steady_ms: int) -> None:
        """Queue the responses whose deadline has passed for their final attempt. Their deadlines are removed, the entries stay."""
        while self._deadlines and self._deadlines[0][0] <= steady_ms:
            entry = heapq.heappop(self._deadlines)
            if self._is_on(entry):
                self.woken[entry[2]] = True

    def take_woken(self) -> tuple[int, bool] | None:
        """The next connection to try, and whether this is its final attempt; None if the queue is empty."""
        if not self.woken:
            return None
        connection_id = next(iter(self.woken))
        return connection_id, self.woken.pop(connection_id)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next attempt; 0, which has passed, for immediately."""
        if self.woken:
            return 0
        while self._deadlines and not self._is_on(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _is_on(self, entry: tuple[int, int, int]) -> bool:
        wait = self.waits.get(entry[2])
        return wait is not None and wait.serial == entry[1]
