"""Staying awake for a moment after an answer, for the client that sends its next request as soon as it has read it.

Such a client's request is there before the system could put the process to sleep and wake it again, which takes longer than the work on a
small request. So the event loop looks for it at once, again and again, for a few dozen microseconds. Where that is in vain, or somebody
else needs the processor meanwhile, the loop sleeps as usual for the next one, two, four ... times: clients that take their time, and
processors with enough to do, pay next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chaffinch.runtime.skip_backoff import SkipBackoff

TURNS_ASLEEP_MAX: Final = 256
"""So many turns at most go by without looking out. A client that asks in a quick row is noticed within 30 ms then; for requests that come
once a millisecond the loop stays awake four times a second."""

AWAY_S_MAX: Final = 5e-6
"""Somebody else had the processor for longer while the loop stayed awake, and would have had it sooner: as good as in vain. So it is when
its client runs on the same processor."""


class BusyPoll:
    """Of one event loop. `call_soon`: the loop's; `now_s`, `worked_s`: the clock, and this thread's processor time, to the microsecond.

    `duration_us` 0: it never stays awake.
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
        self._away_s = 0.0  # The difference of the two clocks when the last turn ended.
        self._is_awake = False
        self._has_looked = False  # Since it is awake: what comes together with the turn it began after did not need it.
        self._pauses = SkipBackoff(TURNS_ASLEEP_MAX)

    def turn_ended(self) -> None:
        """Something came, and what can be answered of it is: look out for more."""
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
        """From now on it never stays awake."""
        self._duration_s = self._until_s = 0.0

    def _look(self) -> None:
        """The loop asks the system for what has come between two calls of this, without waiting."""
        if self._now_s() < self._until_s:
            self._has_looked = True
            self._call_soon(self._look)
            return
        self._is_awake = self._has_looked = False
        self._pauses.failed()
