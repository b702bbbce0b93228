"""Virtual time of one world: an event queue, a clock and the only random generator.

Nothing waits and nothing runs concurrently: `run` takes the earliest action, sets the clock to its time and calls it. Actions of the same
millisecond run in the order in which they were planned, so the same seed gives the same trace, line by line. Two runs are equal if the
digests of their traces are. The pattern is that of Kafka's RaftEventSimulationTest and TigerBeetle's VOPR.

This is the only module of the simulation that creates random generators; the cores get theirs from `World.new_rng`.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

BEGIN_MS = 1_750_000_000_000
"""Virtual time 0 in ms since 1970: record timestamps have to look like timestamps."""

ACTIONS_PER_MS_MAX = 20_000
"""More actions in one millisecond mean that an actor plans for the current millisecond in a loop."""

T = TypeVar("T")
Action = Callable[[], None]


class Stuck(Exception):
    """The awaited condition did not hold: virtual time passed the limit or stands still, or no action is planned any more."""


def all_hold(of: Callable[[T], bool], those: Iterable[T]) -> Callable[[], bool]:
    """A condition for `World.run`, which evaluates it every millisecond. The item that failed last is checked first: it usually still
    fails."""
    ordered = list(those)

    def holds() -> bool:
        for index, each in enumerate(ordered):
            if not of(each):
                ordered.insert(0, ordered.pop(index))
                return False
        return True

    return holds


class World:
    """The event queue, the clock and the random generator of one world. `counters` count events by name; `trace` holds the lines so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.steady_ms = BEGIN_MS
        self.counters: Counter[str] = Counter()
        self.trace: list[str] = []
        self._planned: dict[int, list[Action]] = {}
        """Actions by time; each list in the order of planning. Most actions share their millisecond with others."""
        self._times: list[int] = []
        """A heap of the times in `_planned`."""

    @property
    def elapsed_ms(self) -> int:
        return self.steady_ms - BEGIN_MS

    @property
    def digest(self) -> str:
        """SHA-256 of the trace so far."""
        return hashlib.sha256("".join(self.trace).encode()).hexdigest()

    def new_rng(self) -> random.Random:
        """A generator for one actor, so that its values do not depend on what other actors draw in the meantime."""
        return random.Random(self.rng.getrandbits(64))

    def at(self, time_ms: int, action: Action) -> None:
        """Plan `action` for a time; a time in the past means now. The action cannot be cancelled: use a `WakeTimer` for that."""
        if time_ms < self.steady_ms:
            time_ms = self.steady_ms
        actions = self._planned.get(time_ms)
        if actions is None:
            self._planned[time_ms] = [action]
            heapq.heappush(self._times, time_ms)
        else:
            actions.append(action)

    def after(self, delay_ms: int, action: Action) -> None:
        self.at(self.steady_ms + delay_ms, action)

    def run(self, until: Callable[[], bool], *, limit_ms: int, waiting_for: str) -> None:
        """Run actions until the condition holds at the end of a millisecond.

        Raises Stuck after `limit_ms` of virtual time, naming what was waited for.
        """
        deadline_ms = self.steady_ms + limit_ms
        times = self._times
        while True:
            if (not times or times[0] > self.steady_ms) and until():
                return
            if not times or times[0] > deadline_ms:
                why = f"not within {limit_ms} ms" if times else "no action is planned any more"
                raise Stuck(f"{waiting_for}: {why}")
            self.steady_ms = times[0]
            self._run_due()

    def _run_due(self) -> None:
        """Run all actions planned for the current millisecond, including those that they plan for it."""
        for count, action in enumerate(self._planned[self.steady_ms]):
            if count > ACTIONS_PER_MS_MAX:
                raise Stuck(f"time stands still at {self.elapsed_ms} ms")
            action()
        del self._planned[heapq.heappop(self._times)]

    def chance(self, share: float) -> bool:
        """True with probability `share`. Draws nothing if it is 0."""
        return share > 0 and self.rng.random() < share

    def count(self, name: str, count: int = 1) -> None:
        self.counters[name] += count

    def log(self, actor: str, what: str) -> None:
        """Append a line to the trace. It must not contain an object's address or hash."""
        self.trace.append(f"{self.steady_ms - BEGIN_MS:>9} {actor}: {what}")
