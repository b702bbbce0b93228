"""One poll: what a rebalance wants of the caller, what became of its commits, then records, as soon as there are some.

Ctrl-C may come between their being taken and the caller's having them. So they are remembered until the caller says that it has them; else
the next call takes them back, and they are read again.

`for record in consumer`: many records are polled at once and given one by one, and positions follow each one. What was polled and not given
when the loop ends, or when the caller polls, seeks or pauses in the meantime, is given back: read again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from chaffinch.consumer.callbacks import Callbacks
from chaffinch.consumer.consumer_thread import ConsumerThread
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.positions import Kind
from chaffinch.consumer.core.rebalance import Callback
from chaffinch.consumer.records import ConsumerRecord
from chaffinch.errors import IllegalStateException, WakeupException
from chaffinch.identifiers import TopicPartition
from chaffinch.runtime.clock import Clock

T = TypeVar("T")


class Taken:
    """What one poll takes."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_over = False
        """There is something to give, or nothing is read any more."""
        self.portions: list[Portion] = []


class Polls:
    """Those of one consumer, one after the other."""

    def __init__(self, core: ConsumerCore, thread: ConsumerThread, callbacks: Callbacks, clock: Clock) -> None:
        self.taken: Taken | None = None
        """What was taken last, until its caller has it, and sets this to None."""
        self.is_woken = False
        """Somebody has called `wakeup`, and no call has ended for it yet."""
        self._core = core
        self._thread = thread
        self._callbacks = callbacks
        self._clock = clock

    def check_woken(self) -> None:
        if self.is_woken:
            self.is_woken = False
            raise WakeupException("the call was ended by wakeup()")

    def make_up(self) -> None:
        """Take back what was taken for a call that was interrupted, or failed, before its caller had it."""
        self._callbacks.none_runs()
        if self.taken is not None and self._thread.death is None:  # Else there is nobody to read it again, and `close` has to get by.
            self._thread.run(self._take_back)

    def _take_back(self) -> None:
        taken, self.taken = self.taken, None
        if taken is not None:
            self._core.fetcher.take_back(taken.portions)

    def portions(self, timeout_ms: int | None, records_max: int) -> list[Portion]:
        """What one poll gives; `taken` until its caller says that it has it."""
        if self._core.subscriptions.kind is Kind.NONE:
            raise IllegalStateException("there is nothing to poll: call subscribe() or assign() first")
        if self._callbacks.is_telling:
            raise IllegalStateException("poll within a rebalance callback: it would wait for the callback to end")
        try:
            portions = self._waited_for(timeout_ms, records_max)
            self._core.poll_ends(self._clock.steady_ms())
        except BaseException:  # Ctrl-C, in the midst of the line above, too.
            self._core.poll_ends(self._clock.steady_ms())
            raise
        return portions

    def _waited_for(self, timeout_ms: int | None, records_max: int) -> list[Portion]:
        """Records, as soon as there are some. Until then callbacks are called: for partitions that come and go, and for commits."""
        started_ms, taken = self._clock.steady_ms(), Taken()

        def step() -> Taken | Callback | None:
            if not taken.has_begun:
                taken.has_begun = True
                self._core.poll_begins(started_ms, self._clock.wall_ms())
            if self._callbacks.are_commits_over:
                return taken
            if self._core.subscriptions.kind is Kind.NONE:  # Since a callback, or a signal handler: nothing would ever come.
                taken.is_over = True
                return taken
            if (callback := self._core.next_callback(self._clock.steady_ms())) is not None:
                return callback
            self.check_woken()
            self._core.raise_error()
            taken.portions = self._core.take(records_max)
            if not taken.portions:
                return None
            taken.is_over, self.taken = True, taken
            return taken

        while True:
            left_ms = None if timeout_ms is None else max(0, started_ms + timeout_ms - self._clock.steady_ms())
            found = self._thread.run_until(step, None if left_ms is None else left_ms / 1000)
            if isinstance(found, Callback):
                self._tell(found)
            elif found is None or taken.is_over:
                return taken.portions
            if self._callbacks.are_commits_over:
                self._called_back(self._callbacks.tell_commits)

    def _tell(self, callback: Callback) -> None:
        error = self._called_back(lambda: self._callbacks.tell(callback))
        self._thread.run(lambda: self._core.callback_done(callback))
        if error is not None:
            raise error

    def _called_back(self, tell: Callable[[], T]) -> T:
        """Call the caller back. He does not poll meanwhile: where that takes longer than max.poll.interval.ms his place is another's."""
        self._thread.run(lambda: self._core.poll_ends(self._clock.steady_ms()))
        found = tell()
        self._thread.run(lambda: self._core.poll_goes_on(self._clock.steady_ms()))
        return found


@dataclass(frozen=True, slots=True)
class Marked:
    """Records of one poll, noted as not given yet. `ends`: of each partition the last of them, and the position behind it."""

    records: list[ConsumerRecord]
    ends: dict[TopicPartition, tuple[int, int]]


def mark(core: ConsumerCore, records: list[ConsumerRecord]) -> Marked:
    """Note that none of these is given yet."""
    assigned = core.subscriptions.assigned
    ends: dict[TopicPartition, tuple[int, int]] = {}
    for record in reversed(records):
        place = record.topic_partition
        state = assigned[place]
        if state.has_renewed:
            continue  # The topic was deleted meanwhile: `one_by_one` gives nothing more of it.
        state.given = record.offset
        if place not in ends and state.position is not None:
            ends[place] = record.offset, state.position.offset
    return Marked(records, ends)


def one_by_one(core: ConsumerCore, marked: Marked, give_back: Callable[[], object]) -> Iterator[ConsumerRecord]:
    """Give each; `give_back` is called at the end, for those that were not."""
    left: set[TopicPartition] = set()
    try:
        for record in marked.records:
            place = record.topic_partition
            found = core.subscriptions.assigned.get(place)
            if place in left or found is None or found.is_paused or not 0 <= found.given <= record.offset:
                left.add(place)  # For good: what comes behind it in another portion is not next, resumed or not.
                continue
            last, end = marked.ends.get(place, (-1, -1))
            # After the last one nothing is left to give back, though marks of transactions may lie between it and the position. Nothing
            # is called before it is given: Ctrl-C comes with calls, and a record that is noted as given must be.
            found.given = end if record.offset == last else record.offset + 1
            yield record
    finally:
        give_back()
