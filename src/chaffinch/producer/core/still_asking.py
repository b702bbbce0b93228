"""What a transaction, or a producer without an identity, asks a broker for may take as long as `max.block.ms`: the log says why.

The same is said of batches by `refused_again.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from chaffinch.client.long_waits import SAID_AFTER_MS, SAID_AGAIN_MS, in_words
from chaffinch.producer.core.asking import Asking, Waiting
from chaffinch.producer.core.effects import Effect, Report


class StillAsking:
    """One line after a while, and seldom another. `who_waits` is asked when there is something to say; without anybody nothing is said."""

    def __init__(self, asking: Asking, who_waits: Callable[[], Iterable[Waiting]], out: list[Effect]) -> None:
        self._asking = asking
        self._who_waits = who_waits
        self._out = out
        self._run: Hashable = None
        self._since_ms = 0
        self._silent_until_ms = 0

    def look(self, goal: Hashable, now_ms: int) -> None:
        """`goal`: what is to be had from a broker now, None if nothing is. Another one, or a success on the way, is progress."""
        run = None if goal is None else (goal, self._asking.successes)
        if run != self._run:
            self._run, self._since_ms = run, now_ms
        asked = self._asking.failed or self._asking.last
        if run is None or asked is None or now_ms < self._due_ms:
            return
        self._silent_until_ms = now_ms + SAID_AGAIN_MS
        first = min(self._who_waits(), key=lambda waiting: waiting.until_ms, default=None)
        if first is not None:
            error, left_ms = self._asking.last_error, max(0, first.until_ms - now_ms)
            why = "no answer yet" if error is None else in_words(error)
            tried = f"{first.who}, still asking, for up to {left_ms} ms more ({first.limit})"
            self._out.append(Report(f"{asked.what} at {asked.address}, for {now_ms - self._since_ms} ms: {why}; {tried}"))

    @property
    def _due_ms(self) -> int:
        return max(self._since_ms + SAID_AFTER_MS, self._silent_until_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When there is something to say, if nothing happens until then."""
        return None if self._run is None else self._due_ms
