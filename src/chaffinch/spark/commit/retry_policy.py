"""How long and how often a commit asks again. No clock and no dice of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaffinch.client.wait_log import Wait

ENDING_POLL_MS = 50
"""Between two looks at a transaction that is about to end: nobody failed, and it takes a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What users set of it."""

    block_max_ms: int
    """How long each request but Produce and EndTxn is asked again (kafka.max.block.ms)."""
    wait_ms: Callable[[int], int]
    """How long is waited after so many failures in a row (kafka.retry.backoff.ms)."""

    def at_most(self, block_max_ms: int) -> RetryPolicy:
        return replace(self, block_max_ms=min(self.block_max_ms, block_max_ms))


@dataclass(slots=True)
class Attempts:
    """At one request. The first of its answers that is not final begins the time."""

    retry_policy: RetryPolicy
    _failures: int = 0
    """In a row."""
    _until_ms: int | None = None

    def is_expired(self, steady_ms: int) -> bool:
        """Whether nothing is asked again after an answer that came now."""
        if self._until_ms is None:
            self._until_ms = steady_ms + self.retry_policy.block_max_ms
        return steady_ms >= self._until_ms

    def wait_info(self, what: str, why: str) -> Wait:
        """What is asked again, for the log."""
        until_ms = self._until_ms or 0
        since_ms = until_ms - self.retry_policy.block_max_ms
        return Wait(what, what, since_ms, why.rstrip(" ."), until_ms=until_ms, limit="kafka.max.block.ms")

    def next_backoff_ms(self) -> int:
        """How long is waited after one more failure."""
        self._failures += 1
        return self.retry_policy.wait_ms(self._failures)

    def ending_poll_ms(self) -> int:
        """How long is waited where nobody failed."""
        self._failures = 0
        return ENDING_POLL_MS
