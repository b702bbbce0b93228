"""What a transaction, or a producer without an identity, asks a broker for may take as long as `max.block.ms`: the log says why.

Batches are reported by `waiting_batches.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from chaffinch.client.wait_log import Wait, WaitLog, in_words
from chaffinch.errors import KafkaException
from chaffinch.producer.core.asking import Asked, Asking, Waiting
from chaffinch.producer.core.effects import Effect, Report

SILENT_AFTER_MS: Final = 1_000
"""A request that is under way for less than this may be answered any moment: it is not called silent."""


class StillAsking:
    """One line after a while, and seldom another. `who_waits` is asked when there is something to say; without anybody nothing is said."""

    def __init__(self, asking: Asking, who_waits: Callable[[], Iterable[Waiting]], out: list[Effect]) -> None:
        self._asking = asking
        self._who_waits = who_waits
        self._out = out
        self._run: Hashable = None
        self._since_ms = 0
        self._last: Asked | None = None
        """The last request, as of the last look, and when it was first seen."""
        self._last_ms = 0
        self._earlier: tuple[Asked | None, Asked | None] = None, None
        """What had failed, and what was asked last, when the run began: their errors say nothing of the run."""
        self._wait_log = WaitLog()

    def look(self, goal: Hashable, now_ms: int) -> None:
        """`goal`: what is to be had from a broker now, None if nothing is. Another one, or a success on the way, is progress."""
        run = None if goal is None else (goal, self._asking.successes)
        if run != self._run:
            self._run, self._since_ms = run, now_ms
            if run is None:
                self._wait_log.over()
            self._earlier = self._asking.failed, self._last
        if self._asking.last is not self._last:
            self._last, self._last_ms = self._asking.last, now_ms
        if run is None or now_ms < self._due_ms:
            return
        asked, error = self._blamed(now_ms)
        if asked is None:
            return
        first = min(self._who_waits(), key=lambda waiting: waiting.until_ms, default=None)
        if first is None:
            return
        why = "no answer yet" if error is None else in_words(error)
        what = f"{asked.what} at {asked.address}"
        line = self._wait_log.line(Wait(None, what, self._since_ms, why, first.who, first.until_ms, first.limit), now_ms)
        if line is not None:
            self._out.append(Report(line))

    def _blamed(self, now_ms: int) -> tuple[Asked | None, KafkaException | None]:
        """The request that all waits for, and its error; without one while it has no answer. None where nothing is asked yet."""
        asking = self._asking
        silent = asking.last if asking.is_under_way and now_ms >= self._last_ms + SILENT_AFTER_MS else None
        failed = asking.failed
        is_of_run = failed is not None and all(failed is not earlier for earlier in self._earlier)
        if not is_of_run or silent not in (None, failed):  # What it hangs on now is another broker, or another question.
            return silent, None
        return failed, asking.last_error

    @property
    def _due_ms(self) -> int:
        return self._wait_log.due_ms(None, self._since_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When there is something to say, if nothing happens until then."""
        if self._run is None:
            return None
        return max(self._due_ms, self._last_ms + SILENT_AFTER_MS) if self._asking.is_under_way else self._due_ms
