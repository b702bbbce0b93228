"""Staying awake for a moment for an answer that somebody waits for.

A broker nearby answers before the system could put a thread to sleep and wake it again. So the thread looks for the answer at once, again
and again, for at most `SPIN_US`; each look lets go of the interpreter's lock, and of the processor, if anybody else wants it. Where that
was in vain the next one, two, four ... waits sleep as usual: brokers that are slow to answer, and busy machines, cost next to nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from chaffinch.runtime.skip_backoff import SkipBackoff

T = TypeVar("T")

SPIN_US: Final = 150
"""About twice what `chaffinch broker` takes for one record on the same machine."""
SKIPPED_WAITS_MAX: Final = 256
"""So many waits at most are slept through without looking. With one each millisecond the thread is awake four times a second then."""


def _now_us() -> float:
    return time.perf_counter() * 1e6


def _yield_processor() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()


class BusyPoll:
    """Of one thread. `now_us`: microseconds on a clock that never goes back."""

    def __init__(self, now_us: Callable[[], float] = _now_us) -> None:
        self._now_us = now_us
        self._backoff = SkipBackoff(SKIPPED_WAITS_MAX)

    def poll(self, select: Callable[[], list[T]]) -> list[T]:
        """What `select`, which does not wait, finds in the next moment; empty when nothing came, or when it is not worth while to look."""
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
