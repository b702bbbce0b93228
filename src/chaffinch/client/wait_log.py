"""Rate-limited log lines about long waits: the request or event, its broker, the cause, and the time limit. Shared by all clients."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from chaffinch.errors import KafkaException
from chaffinch.errors.exceptions import one_line

FIRST_LINE_MS: Final = 2_500
"""A wait that lasts longer is logged. A new leader or coordinator is usually found sooner."""
FIRST_PAUSE_MS: Final = 10_000
"""Pause between the first and the second line about the same cause; each later pause is twice as long, up to `LONGEST_PAUSE_MS`."""
LONGEST_PAUSE_MS: Final = 60_000


def in_words(error: KafkaException) -> str:
    """An error as a part of one log line."""
    return f"{error.name} ({one_line(error.message).rstrip('.')})" if error.message else error.name


class Wait(NamedTuple):
    """One wait. `cause`: lines about the same cause are rate-limited together."""

    cause: Hashable
    what: str
    """The awaited request or event, with its address or partition."""
    since_ms: int
    why: str
    who: str = ""
    """The waiting records or call: `2 records without an outcome`, `close waits`; empty: the caller that reads the line."""
    until_ms: int | None = None
    """When the wait ends without success; None: it has no limit."""
    limit: str = ""
    """The option or argument that sets `until_ms`."""

    def line(self, steady_ms: int) -> str:
        """The log line. Text of brokers in it must be on one line already (`in_words`)."""
        left = "without a limit" if self.until_ms is None else f"for up to {max(0, self.until_ms - steady_ms)} ms more"
        limit = f" ({self.limit})" if self.limit else ""
        who = f"{self.who}, " if self.who else ""
        return f"{self.what}, for {steady_ms - self.since_ms} ms: {self.why}; {who}retrying {left}{limit}"


class WaitLog:
    """Decides when a wait is logged: first after `FIRST_LINE_MS`, then after growing pauses for as long as its cause lasts.

    Call `line` regularly while something is waited for, and `over` when nothing is.
    """

    __slots__ = ("_pauses",)

    def __init__(self) -> None:
        self._pauses: dict[Hashable, tuple[int, int]] = {}
        """By cause: when the next line is due, and the pause that led there."""

    def due_ms(self, cause: Hashable, since_ms: int) -> int:
        """When the next line about this cause is due."""
        return max(since_ms + FIRST_LINE_MS, self._pauses.get(cause, (since_ms, 0))[0])

    def line(self, wait: Wait, steady_ms: int) -> str | None:
        """The line to log now; None while none is due."""
        if steady_ms < self.due_ms(wait.cause, wait.since_ms):
            return None
        self.logged(wait.cause, wait.since_ms, steady_ms)
        return wait.line(steady_ms)

    def logged(self, cause: Hashable, since_ms: int, steady_ms: int) -> None:
        """A line about this cause is logged now, by the caller."""
        next_ms, pause_ms = self._pauses.get(cause, (since_ms, 0))
        is_new = since_ms >= next_ms
        pause_ms = FIRST_PAUSE_MS if is_new else min(2 * pause_ms, LONGEST_PAUSE_MS)
        self._pauses[cause] = steady_ms + pause_ms, pause_ms

    def over(self) -> None:
        """Nothing is waited for: the next wait is logged after `FIRST_LINE_MS` again."""
        self._pauses.clear()
