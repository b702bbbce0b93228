"""Time, behind a seam: shells read a `Clock` and hand the number to their cores.

Two times, because they serve two purposes. `wall_ms` goes into records and may jump when the machine's clock is set;
`now_ms` is for waiting and deadlines and never goes back. Only differences of `now_ms` mean anything.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a shell needs to know about time."""

    def now_ms(self) -> int:
        """Milliseconds on a clock that never goes back; its zero means nothing."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as record timestamps count them."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is told otherwise, for tests and the simulation. Both times advance together, until it is set."""

    __slots__ = ("_now_ms", "_wall_offset_ms")

    def __init__(self, now_ms: int = 0, *, wall_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._wall_offset_ms = wall_ms - now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._now_ms + self._wall_offset_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass; never backwards."""
        if by_ms < 0:
            raise ValueError(f"time does not go back, not even by {-by_ms} ms")
        self._now_ms += by_ms

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock forward or back, or let the machine sleep so long: the other time does not notice."""
        self._wall_offset_ms += by_ms
