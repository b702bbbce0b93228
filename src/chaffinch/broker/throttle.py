"""Bandwidth throttle for a connection (`slow_down` in a fault script): limits bytes per second in one or both directions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from chaffinch.protocol.primitives import Buffer

PORTION_SECONDS: Final = 0.05
"""Duration of one portion. Connections slower than 20 bytes per second send one byte per portion."""


class Timer(Protocol):
    def cancel(self) -> None: ...


Later: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""(seconds, function): the event loop's `call_later`."""


class ThrottledResponses:
    """Queues responses and sends them in portions. `write` passes bytes to the transport; `drained` is called when the queue is empty."""

    def __init__(self, bytes_per_second: int, write: Callable[[Sequence[Buffer]], None], drained: Callable[[], None], later: Later) -> None:
        self._seconds = max(PORTION_SECONDS, 1 / bytes_per_second)
        self._portion = max(1, int(bytes_per_second * self._seconds))
        self._write = write
        self._drained = drained
        self._later = later
        self._parts: deque[memoryview] = deque()
        self._timer: Timer | None = None
        self.bytes_waiting = 0

    def add(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            if view:
                self._parts.append(view)
                self.bytes_waiting += len(view)
        if self._timer is None:
            self._next()

    def close(self) -> None:
        """Drop the queue."""
        self._parts.clear()
        self.bytes_waiting = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        portion: list[Buffer] = []
        budget = self._portion
        while budget and self._parts:
            view = self._parts.popleft()
            if len(view) > budget:
                self._parts.appendleft(view[budget:])
                view = view[:budget]
            portion.append(view)
            budget -= len(view)
        self.bytes_waiting -= self._portion - budget
        self._timer = self._later(self._seconds, self._next) if self._parts else None
        if portion:
            self._write(portion)
        if not self.bytes_waiting:
            self._drained()


class ThrottledRequests:
    """Pauses reading after each chunk for as long as the chunk should have taken."""

    def __init__(self, bytes_per_second: int, resume: Callable[[], None], later: Later) -> None:
        self._bytes_per_second = bytes_per_second
        self._resume = resume
        self._later = later
        self._timer: Timer | None = None

    @property
    def must_pause(self) -> bool:
        return self._timer is not None

    def read(self, count: int) -> None:
        """Count received bytes and start the pause."""
        if self._timer is None:
            self._timer = self._later(count / self._bytes_per_second, self._over)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._resume()
