"""Backoff by count: after each failed attempt skip the next 1, 2, 4, ... opportunities."""

from __future__ import annotations


class SkipBackoff:
    """Skip counter for one repeated attempt. `skips_max`: maximum number of opportunities skipped in a row."""

    __slots__ = ("_next_skips", "_skips_left", "_skips_max")

    def __init__(self, skips_max: int) -> None:
        self._skips_max = skips_max
        self._skips_left = 0
        self._next_skips = 1

    def should_skip(self) -> bool:
        """Whether to skip the current opportunity."""
        if not self._skips_left:
            return False
        self._skips_left -= 1
        return True

    def failed(self) -> None:
        """Record a failure: skip twice as many opportunities as the last time."""
        self._skips_left = self._next_skips
        self._next_skips = min(2 * self._next_skips, self._skips_max)

    def succeeded(self) -> None:
        """Record a success: reset the skip count to one."""
        self._next_skips = 1
