"""Retry policy of a commit: for how long, and with which backoff, requests are retried. No clock and no random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaffinch.client.wait_log import Wait

ENDING_POLL_MS = 50
"""Interval between two checks of a transaction that is still ending, which is not a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The user's settings."""

    block_max_ms: int
    """For how long each request except Produce and EndTxn is retried (kafka.max.block.ms)."""
    wait_ms: Callable[[int], int]
    """Backoff after this many failures in a row (kafka.retry.backoff.ms)."""

    def at_most(self, block_max_ms: int) -> RetryPolicy:
        return replace(self, block_max_ms=min(self.block_max_ms, block_max_ms))


@dataclass(slots=True)
class Attempts:
    """The attempts at one request. The time limit starts with the first response that is not final."""

    retry_policy: RetryPolicy
    _failures: int = 0
    """Number of consecutive failures."""
    _until_ms: int | None = None

    def is_expired(self, steady_ms: int) -> bool:
        """Whether no further attempt is made after a response at this time."""
        if self._until_ms is None:
            self._until_ms = steady_ms + self.retry_policy.block_max_ms
        return steady_ms >= self._until_ms

    def wait_info(self, what: str, why: str) -> Wait:
        """The retried request, for the log."""
        until_ms = self._until_ms or 0
        since_ms = until_ms - self.retry_policy.block_max_ms
        return Wait(what, what, since_ms, why.rstrip(" ."), until_ms=until_ms, limit="kafka.max.block.ms")

    def next_backoff_ms(self) -> int:
        """Backoff after one more failure."""
        self._failures += 1
        return self.retry_policy.wait_ms(self._failures)

    def ending_poll_ms(self) -> int:
        """Wait time without a failure."""
        self._failures = 0
        return ENDING_POLL_MS
