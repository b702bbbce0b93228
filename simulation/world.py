"""One seed, one world: virtual time, a queue of what happens next, and the only dice.

Nothing here waits and nothing runs beside anything else: `run` takes the earliest action, sets the clock to its time and calls it.
Two actions of the same millisecond run in the order in which they were planned, so that the same seed gives the same story, line by
line. Two runs are the same when the digests of their stories are. The pattern is that of RaftEventSimulationTest
and of TigerBeetle's VOPR.

The only file of the simulation that makes dice; the cores get theirs from `World.new_dice`.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

BEGIN_MS = 1_750_000_000_000
"""Virtual time 0 as ms since 1970: record timestamps have to look like timestamps."""

ACTIONS_PER_MS_MAX = 20_000
"""More at one instant means that somebody plans for now again and again."""

T = TypeVar("T")
Action = Callable[[], None]


class Stuck(Exception):
    """Virtual time went past a limit, stands still, or nothing is planned any more, before the condition that was waited for held."""


def all_hold(of: Callable[[T], bool], those: Iterable[T]) -> Callable[[], bool]:
    """For `World.run`, which asks each millisecond. Whoever was in the way is asked first the next time: mostly they still are."""
    ordered = list(those)

    def holds() -> bool:
        for index, each in enumerate(ordered):
            if not of(each):
                ordered.insert(0, ordered.pop(index))
                return False
        return True

    return holds


class World:
    """See the module. `counters` say what happened, by name; `trace` are the story so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.steady_ms = BEGIN_MS
        self.counters: Counter[str] = Counter()
        self.trace: list[str] = []
        self._planned: dict[int, list[Action]] = {}
        """By time; each list in the order of planning. Most actions share their millisecond with others."""
        self._times: list[int] = []
        """A heap of those times."""

    @property
    def elapsed_ms(self) -> int:
        return self.steady_ms - BEGIN_MS

    @property
    def digest(self) -> str:
        """Of everything told so far."""
        return hashlib.sha256("".join(self.trace).encode()).hexdigest()

    def new_rng(self) -> random.Random:
        """Dice for one actor, so that what it rolls does not depend on what others roll meanwhile."""
        return random.Random(self.rng.getrandbits(64))

    def at(self, time_ms: int, action: Action) -> None:
        """Plan `action` for a time; one that has passed means now. It will run: who may change their mind has a `WakeTimer`."""
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
        """Let things happen until the condition holds at the end of a millisecond.

        Raises Stuck after `limit_ms` of virtual time, naming what was waited for."""
        deadline_ms = self.steady_ms + limit_ms
        times = self._times
        while True:
            if (not times or times[0] > self.steady_ms) and until():
                return
            if not times or times[0] > deadline_ms:
                why = f"not within {limit_ms} ms" if times else "and nothing is planned any more"
                raise Stuck(f"{waiting_for}: {why}")
            self.steady_ms = times[0]
            self._run_due()

    def _run_due(self) -> None:
        """All that is planned for now, and what that plans for now."""
        for count, action in enumerate(self._planned[self.steady_ms]):
            if count > ACTIONS_PER_MS_MAX:
                raise Stuck(f"time stands still at {self.elapsed_ms} ms")
            action()
        del self._planned[heapq.heappop(self._times)]

    def chance(self, share: float) -> bool:
        """True in `share` of all cases. Rolls nothing for 0."""
        return share > 0 and self.rng.random() < share

    def count(self, name: str, count: int = 1) -> None:
        self.counters[name] += count

    def log(self, actor: str, what: str) -> None:
        """One line of the story. No object's address or hash may be in it."""
        self.trace.append(f"{self.steady_ms - BEGIN_MS:>9} {actor}: {what}")
