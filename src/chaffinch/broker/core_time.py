"""The time of a broker's core: what it is now, and when the core wants to be asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.runtime.clock import Clock

LOOK_INTERVAL_S: Final = 0.001
"""How long after a busy turn of the loop the core is asked for its next deadline: in this time there may be ten more of them."""


class CoreTime:
    """Of one core, on one event loop. `due` is called when the core's deadline has come.

    `start_ms`: what the clock's `wall_ms` was when its `now_ms` was 0: with it the core's time begins.
    `looks_soon`: `look_soon` was called, and the core is not asked yet.
    """

    def __init__(self, core: BrokerCore, clock: Clock, start_ms: int, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self.looks_soon = False
        self._core = core
        self._wall = core.state.wall
        self._clock = clock
        self._start_ms = start_ms
        self._loop = loop
        self._due = due
        self._looked_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._has_ended = False

    def now_ms(self) -> int:
        """The core's time: the steady clock, from where the wall clock stood at the start. Once a millisecond the wall clock is looked at,
        too: somebody may have set it, or the machine slept."""
        now_ms = self._start_ms + self._clock.now_ms()
        if now_ms != self._looked_ms:
            self._looked_ms = now_ms
            wall_ms = self._clock.wall_ms()
            if wall_ms - now_ms != self._wall.offset_ms:
                self._core.set_wall_clock(wall_ms, now_ms)
        return now_ms

    def look_soon(self) -> None:
        """The core may wait for something else than before. To ask for it has a price: once for all that comes within a millisecond."""
        self.looks_soon = True
        self._loop.call_later(LOOK_INTERVAL_S, self.arm)

    def arm(self) -> None:
        """Wake up at the core's next deadline; too early is harmless."""
        self.looks_soon = False
        deadline_ms = self._core.next_deadline_ms
        if self._has_ended or deadline_ms is None or (self._timer_ms is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = self._timer_ms = None
        try:
            self._due()
        finally:
            self.arm()

    def end(self) -> None:
        """The core is not asked any more."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
