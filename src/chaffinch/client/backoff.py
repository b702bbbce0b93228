"""How long to wait before trying again: exponential, with jitter (KIP-144, KIP-580; ExponentialBackoff.java).

The rng are passed in, so that a seeded run repeats itself.
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
    """Where chance comes from: `random.Random` fits."""

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts: `initial_ms` after the first failure, doubling up to `max_ms`, each 20 % longer or shorter by chance."""

    initial_ms: int
    max_ms: int

    def wait_ms(self, failures: int, rng: Rng) -> int:
        """Milliseconds to wait after `failures` failures in a row (1 or more; 0 waits nothing)."""
        if failures <= 0:
            return 0
        exponent = min(failures - 1, EXPONENT_MAX)
        wait = min(self.initial_ms * MULTIPLIER**exponent, self.max_ms)
        return max(0, int(wait * (1 - JITTER + 2 * JITTER * rng.random())))


RETRY_BACKOFF: Final = Backoff(initial_ms=100, max_ms=1_000)
"""retry.backoff.ms and retry.backoff.max.ms, where nobody sets them."""
