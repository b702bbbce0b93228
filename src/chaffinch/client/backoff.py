"""Retry backoff: exponential, with jitter (KIP-144, KIP-580; ExponentialBackoff.java).

The random number generator is passed in, so that a run with a seed is reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

# Both as in CommonClientConfigs: double each time, 20 % around the value.
MULTIPLIER: Final = 2
JITTER: Final = 0.2
# 2**30 times any first wait is beyond every maximum; keeps the power from growing without bound.
EXPONENT_MAX: Final = 30


class Rng(Protocol):
    """Random number generator, such as `random.Random`."""

    def random(self) -> float:
        """A number of at least 0 and less than 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts: `initial_ms` after the first failure, doubling up to `max_ms`, each with a jitter of up to 20 %."""

    initial_ms: int
    max_ms: int

    def wait_ms(self, failures: int, rng: Rng) -> int:
        """Milliseconds to wait after `failures` consecutive failures; 0 after none."""
        if failures <= 0:
            return 0
        exponent = min(failures - 1, EXPONENT_MAX)
        wait = min(self.initial_ms * MULTIPLIER**exponent, self.max_ms)
        return max(0, int(wait * (1 - JITTER + 2 * JITTER * rng.random())))


RETRY_BACKOFF: Final = Backoff(initial_ms=100, max_ms=1_000)
"""The defaults of retry.backoff.ms and retry.backoff.max.ms."""
