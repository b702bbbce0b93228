"""Clocks: steady time and wall time, as an interface that shells read for their cores.

Wall time goes into records and may jump when the machine's clock is set. Steady time is for waits and deadlines and never goes back. Only
differences of steady time mean anything.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Clock interface of the shells."""

    def steady_ms(self) -> int:
        """Milliseconds on a clock that never goes back; its zero means nothing."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as record timestamps count them."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ShiftedClock:
    """The machine's clocks plus a shift that only grows: a program can let hours pass at once."""

    __slots__ = ("_clock", "_shift_ms")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._shift_ms = 0

    def steady_ms(self) -> int:
        return self._clock.steady_ms() + self._shift_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._shift_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass at once; never backwards."""
        if by_ms < 0:
            raise ValueError(f"time does not go back, not even by {-by_ms} ms")
        self._shift_ms += by_ms


class ManualClock:
    """A clock set by hand, for tests and the simulation. Both times advance together until the wall clock is set."""

    __slots__ = ("_steady_ms", "_wall_offset_ms")

    def __init__(self, steady_ms: int = 0, *, wall_ms: int = 1_700_000_000_000) -> None:
        self._steady_ms = steady_ms
        self._wall_offset_ms = wall_ms - steady_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def wall_ms(self) -> int:
        return self._steady_ms + self._wall_offset_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass; never backwards."""
        if by_ms < 0:
            raise ValueError(f"time does not go back, not even by {-by_ms} ms")
        self._steady_ms += by_ms

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock forward or back, or simulate sleep: the steady time does not change."""
        self._wall_offset_ms += by_ms
