"""Busy polling: spin briefly for an awaited response before the thread sleeps.

A nearby broker responds faster than the operating system can put a thread to sleep and wake it. So the thread polls for at most `SPIN_US`;
each poll releases the interpreter's lock, and yields the processor to other threads. After a spin without a result the next 1, 2, 4, ...
waits sleep as usual. So busy polling costs next to nothing with slow brokers and on busy machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from chaffinch.runtime.skip_backoff import SkipBackoff

T = TypeVar("T")

SPIN_US: Final = 150
"""About twice the time that `chaffinch broker` takes for one record on the same machine."""
SKIPPED_WAITS_MAX: Final = 256
"""Largest number of waits without a spin. At one wait a millisecond the thread then spins four times a second."""


def _now_us() -> float:
    return time.perf_counter() * 1e6


def _yield_processor() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()


class BusyPoll:
    """Used by one thread. `now_us`: microseconds of a monotonic clock."""

    def __init__(self, now_us: Callable[[], float] = _now_us) -> None:
        self._now_us = now_us
        self._backoff = SkipBackoff(SKIPPED_WAITS_MAX)

    def poll(self, select: Callable[[], list[T]]) -> list[T]:
        """Call `select`, which must not block, until it finds something, for up to `SPIN_US`. Empty if it found nothing or was skipped."""
        if self._backoff.should_skip():
            return []
        now_us = self._now_us
        until_us = now_us() + SPIN_US
        while not (found := select()) and now_us() < until_us:
            _yield_processor()
        if found:
            self._backoff.succeeded()
        else:
            self._backoff.failed()
        return found
