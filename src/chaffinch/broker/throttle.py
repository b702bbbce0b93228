"""A connection that is slow on purpose (`slow_down` of a fault script): so many bytes per second in a direction, in small portions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from chaffinch.protocol.primitives import Buffer

PORTION_SECONDS: Final = 0.05
"""How long one portion takes; of slower connections than twenty bytes a second, one byte."""


class Timer(Protocol):
    def cancel(self) -> None: ...


Later: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""(seconds, function): the loop's `call_later`."""


class ThrottledResponses:
    """Answers wait here and leave in portions. `write` gives bytes to the transport, `drained` hears when nothing waits any more."""

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
        """What waits is dropped."""
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
    """Reading pauses after each piece for as long as the piece should have taken."""

    def __init__(self, bytes_per_second: int, resume: Callable[[], None], later: Later) -> None:
        self._bytes_per_second = bytes_per_second
        self._resume = resume
        self._later = later
        self._timer: Timer | None = None

    @property
    def must_pause(self) -> bool:
        return self._timer is not None

    def read(self, count: int) -> None:
        """So many bytes came."""
        if self._timer is None:
            self._timer = self._later(count / self._bytes_per_second, self._over)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._resume()
