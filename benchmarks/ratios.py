"""Ratios of two sides that took turns: median over rounds, its confidence interval, and targets.

    ratio = Ratio.of([1.02, 0.97, 1.01, 0.99, 1.03, 1.00, 0.98])
    Aim(at_least=1.0).is_met(ratio)

No distribution is assumed: the interval is that of the sign test, from the k-th smallest to the k-th largest value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NOISE = 0.03
"""Allowed deviation. Two runs of the same loads differ by more."""

MISSES_MAX = 0.05
"""Maximum probability that the true median is outside of the interval."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median with its interval from `low` to `high`; with fewer than six rounds the interval is the whole range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        ordered = sorted(values)
        rank = outside_count(len(ordered))
        return cls(statistics.median(ordered), ordered[rank], ordered[-1 - rank])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def outside_count(count: int) -> int:
    """How many of `count` values lie outside of the interval on each side."""
    outside, chance = 0, 2 / 2**count
    while True:
        chance += 2 * math.comb(count, outside + 1) / 2**count
        if chance > MISSES_MAX:
            return outside
        outside += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A target for a ratio: `at_least` or `at_most`.

    A multiple is met if the median meets it. The target 1 ("not worse") is also met by a median that is worse by at most `NOISE` if the
    interval contains 1: two brokers that are limited by the same client differ only by noise.
    """

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, ratio: Ratio) -> bool:
        if self.at_least is not None:
            is_near = self.at_least == 1.0 and ratio.median >= 1 - NOISE and ratio.high >= 1
            return ratio.median >= self.at_least or is_near
        assert self.at_most is not None
        return ratio.median <= self.at_most or (self.at_most == 1.0 and ratio.median <= 1 + NOISE and ratio.low <= 1)

    def needs_more_rounds(self, ratio: Ratio) -> bool:
        """Whether more rounds may decide the target 1: the interval contains 1 and is wider than the allowed noise.

        A multiple is decided after the fixed number of rounds: Java gets faster over time, so the number is part of the comparison.
        """
        limit = self.at_least if self.at_least is not None else self.at_most
        return limit == 1.0 and ratio.low < 1 < ratio.high and ratio.high - ratio.low > 2 * NOISE

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:.2g}"
