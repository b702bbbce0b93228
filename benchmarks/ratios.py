"""Ratios of two sides that took turns: the median over rounds, how sure that is, and whether an aim is met.

    ratio = Ratio.of([1.02, 0.97, 1.01, 0.99, 1.03, 1.00, 0.98])
    Aim(at_least=1.0).is_met(ratio)

No distribution is assumed: the interval is that of the sign test, between the k-th smallest and the k-th largest value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NOISE = 0.03
"""Two runs of the same loads differ by more."""

MISSES_MAX = 0.05
"""So often at most, by chance, is the true median outside of the interval."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`low` to `high`: the interval of the median; with fewer than six rounds all there was."""

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
    """How many of `count` values, on either side, lie outside of the interval."""
    outside, chance = 0, 2 / 2**count
    while True:
        chance += 2 * math.comb(count, outside + 1) / 2**count
        if chance > MISSES_MAX:
            return outside
        outside += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """`at_least` or `at_most`. A multiple is met by the median. "Not worse than the other", 1, is met by a median that is, or is worse by
    no more than `NOISE` while the interval has 1 in it: two that are limited by the same client differ by noise alone, either way."""

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, ratio: Ratio) -> bool:
        if self.at_least is not None:
            is_near = self.at_least == 1.0 and ratio.median >= 1 - NOISE and ratio.high >= 1
            return ratio.median >= self.at_least or is_near
        assert self.at_most is not None
        return ratio.median <= self.at_most or (self.at_most == 1.0 and ratio.median <= 1 + NOISE and ratio.low <= 1)

    def needs_more_rounds(self, ratio: Ratio) -> bool:
        """Whether more rounds may decide it: both answers to "not worse" lie in an interval wider than the noise that is allowed for. A
        multiple is taken as it is after its rounds: Java gets faster all the while, and their number is part of what is compared."""
        limit = self.at_least if self.at_least is not None else self.at_most
        return limit == 1.0 and ratio.low < 1 < ratio.high and ratio.high - ratio.low > 2 * NOISE

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:.2g}"
