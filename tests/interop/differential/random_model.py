"""What random sequences are about, and what one has done so far."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.interop.differential.requests import API_BY_NAME
from tests.interop.differential.sequence import Slot, Step

DAY_MS = 86_400_000
TOPICS = {"{run}-a": 2, "{run}-c": 1, "{run}-x": 0}
"""Partitions by name: `-c` is compacted, `-x` does not exist."""
TRANSACTIONAL = ("{run}-t", "{run}-u")
GROUPS = ("{run}-g", "{run}-h")
INT64_MAX = (1 << 63) - 1


@dataclass
class Model:
    """What a sequence has done so far, as far as it knows: enough to make the next request likely to be taken."""

    rng: random.Random
    wall_ms: int
    sequences: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    is_second_protocol: bool = field(init=False)
    """Of transactions: no producer speaks now one, now the other."""

    def __post_init__(self) -> None:
        self.is_second_protocol = self.rng.random() < 0.5

    def transaction_version(self, api: str, first_of_second: int) -> int:
        """Of an API that the second protocol has from this version on."""
        served = [number for number in API_BY_NAME[api].served if (number >= first_of_second) is self.is_second_protocol]
        return self.rng.choice(served)

    def version(self, api: str, below: int = 99) -> int:
        """Mostly the newest."""
        served = [version for version in API_BY_NAME[api].served if version < below]
        return served[-1] if self.rng.random() < 0.5 else self.rng.choice(served)

    def pick_partition(self) -> tuple[str, int]:
        """A topic and a partition, rarely one that does not exist."""
        topic = self.rng.choices(list(TOPICS), (6, 3, 1))[0]
        return topic, self.rng.choice((0, 0, 0, 1, 1, 7, -1)) if self.rng.random() < 0.2 else self.rng.randrange(max(1, TOPICS[topic]))

    def identity(self, name: str) -> tuple[Slot, Slot]:
        """A producer's id and epoch, rarely a neighbouring one."""
        off = self.rng.choices((0, -1, 1), (10, 1, 1))[0]
        return Slot(f"{name} id", -1), Slot(f"{name} epoch", -1, off)


Make = Callable[[Model], Step | list[Step]]
