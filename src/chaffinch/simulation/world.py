"""One seed, one world: virtual time, a queue of what happens next, and the only dice.

Nothing here waits and nothing runs beside anything else: `run` takes the earliest action, sets the clock to its time and calls it.
Two actions of the same millisecond run in the order in which they were planned, so that the same seed gives the same story, line by
line. The story is hashed as it is told; two runs are the same when their digests are. The pattern is that of RaftEventSimulationTest
and of TigerBeetle's VOPR.

The only file of the simulation that makes dice; the cores get theirs from `World.new_dice`.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable

BEGIN_MS = 1_750_000_000_000
"""Virtual time 0 as ms since 1970: record timestamps have to look like timestamps."""

ACTIONS_PER_MS_MAX = 20_000
"""More at one instant means that somebody plans for now again and again."""

Action = Callable[[], None]


class Stuck(Exception):
    """Virtual time went past a limit, stands still, or nothing is planned any more, before the condition that was waited for held."""


class World:
    """See the module. `counters` say what happened, by name; `lines` hold the story when it is kept."""

    def __init__(self, seed: int, *, keeps_story: bool = False) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.now_ms = BEGIN_MS
        self.counters: Counter[str] = Counter()
        self.lines: list[str] = []
        self._keeps_story = keeps_story
        self._hash = hashlib.sha256()
        self._queue: list[tuple[int, int, Action]] = []
        self._serial = 0
        self._actions_now = 0

    @property
    def elapsed_ms(self) -> int:
        return self.now_ms - BEGIN_MS

    @property
    def digest(self) -> str:
        """Of everything told so far."""
        return self._hash.hexdigest()

    def new_dice(self) -> random.Random:
        """Dice for one actor, so that what it rolls does not depend on what others roll meanwhile."""
        return random.Random(self.dice.getrandbits(64))

    def at(self, time_ms: int, action: Action) -> None:
        """Plan `action` for a time; one that has passed means now. It will run: who may change their mind has a `WakeTimer`."""
        self._serial += 1
        heapq.heappush(self._queue, (time_ms if time_ms > self.now_ms else self.now_ms, self._serial, action))

    def after(self, delay_ms: int, action: Action) -> None:
        self.at(self.now_ms + delay_ms, action)

    def run(self, until: Callable[[], bool], *, limit_ms: int, waiting_for: str) -> None:
        """Let things happen until the condition holds at the end of a millisecond.

        Raises Stuck after `limit_ms` of virtual time, naming what was waited for."""
        deadline_ms = self.now_ms + limit_ms
        queue = self._queue
        while True:
            if not queue or queue[0][0] > self.now_ms:
                if until():
                    return
                if not queue or queue[0][0] > deadline_ms:
                    why = f"not within {limit_ms} ms" if queue else "and nothing is planned any more"
                    raise Stuck(f"{waiting_for}: {why}")
            time_ms, _, action = heapq.heappop(queue)
            self._advance(time_ms)
            action()

    def _advance(self, time_ms: int) -> None:
        self._actions_now = 0 if time_ms > self.now_ms else self._actions_now + 1
        self.now_ms = time_ms
        if self._actions_now > ACTIONS_PER_MS_MAX:
            raise Stuck(f"time stands still at {self.elapsed_ms} ms")

    def chance(self, share: float) -> bool:
        """True in `share` of all cases. Rolls nothing for 0."""
        return share > 0 and self.dice.random() < share

    def count(self, name: str, count: int = 1) -> None:
        self.counters[name] += count

    def tell(self, who: str, what: str) -> None:
        """One line of the story. No object's address or hash may be in it."""
        line = f"{self.elapsed_ms:>9} {who}: {what}"
        self._hash.update(line.encode())
        if self._keeps_story:
            self.lines.append(line)
