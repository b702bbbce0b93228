"""Busy polling after a response, for clients that send their next request as soon as they have read it.

The next request of such a client arrives sooner than the system could put the process to sleep and wake it, which takes longer than
processing a small request. The event loop therefore polls for a few dozen microseconds instead of sleeping. If that finds nothing, or
another thread needs the CPU in the meantime, the loop sleeps as usual for the next 1, 2, 4 ... times. Slow clients and busy CPUs therefore
cost almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chaffinch.runtime.skip_backoff import SkipBackoff

TURNS_ASLEEP_MAX: Final = 256
"""Longest backoff in event loop turns. A client that sends requests in quick succession is then noticed within 30 ms; for one request per
millisecond the loop polls four times a second."""

AWAY_S_MAX: Final = 5e-6
"""If the loop lost the CPU for longer than this while polling, another thread needed it: counts as a failed attempt. This is the case when
the client runs on the same CPU."""


class BusyPoll:
    """Busy polling on one event loop.

    `call_soon`: of the event loop. `now_s`, `worked_s`: the clock and this thread's CPU time, with microsecond resolution. `duration_us` 0
    disables polling.
    """

    def __init__(
        self,
        duration_us: int,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float],
        worked_s: Callable[[], float],
    ) -> None:
        self._duration_s = duration_us / 1e6
        self._call_soon = call_soon
        self._now_s = now_s
        self._worked_s = worked_s
        self._until_s = 0.0
        self._away_s = 0.0  # Difference of the two clocks at the end of the last turn.
        self._is_awake = False
        # Whether it has polled since it became awake; events that arrive together with the turn itself did not need polling.
        self._has_looked = False
        self._pauses = SkipBackoff(TURNS_ASLEEP_MAX)

    def turn_ended(self) -> None:
        """Called at the end of a turn with input: start or extend polling."""
        if not self._is_awake:
            if not self._duration_s or self._pauses.should_skip():
                return
            self._is_awake = True
            self._call_soon(self._look)
        now_s = self._now_s()
        away_s = now_s - self._worked_s()
        if self._has_looked:
            if away_s - self._away_s > AWAY_S_MAX:
                return
            self._pauses.succeeded()
        self._away_s = away_s
        self._until_s = now_s + self._duration_s

    def end(self) -> None:
        """Disable polling."""
        self._duration_s = self._until_s = 0.0

    def _look(self) -> None:
        """Between two calls of this callback the event loop polls the system for input without waiting."""
        if self._now_s() < self._until_s:
            self._has_looked = True
            self._call_soon(self._look)
            return
        self._is_awake = self._has_looked = False
        self._pauses.failed()
