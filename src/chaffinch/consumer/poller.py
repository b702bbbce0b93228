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


class PollState:
    """What one poll takes."""

    def __init__(self) -> None:
        self.has_started = False
        self.is_done = False
        """There is something to give, or nothing is read any more."""
        self.portions: list[Portion] = []


class Poller:
    """Those of one consumer, one after the other."""

    def __init__(self, core: ConsumerCore, thread: ConsumerThread, callbacks: Callbacks, clock: Clock) -> None:
        self.unconfirmed: PollState | None = None
        """What was taken last, until its caller has it, and sets this to None."""
        self.wakeup_requested = False
        """Somebody has called `wakeup`, and no call has ended for it yet."""
        self._core = core
        self._thread = thread
        self._callbacks = callbacks
        self._clock = clock

    def check_wakeup(self) -> None:
        if self.wakeup_requested:
            self.wakeup_requested = False
            raise WakeupException("the call was ended by wakeup()")

    def return_unconfirmed(self) -> None:
        """Take back what was taken for a call that was interrupted, or failed, before its caller had it."""
        self._callbacks.clear_running()
        if self.unconfirmed is not None and self._thread.death is None:  # Else there is nobody to read it again, and `close` has to get by.
            self._thread.run(self._put_back)

    def _put_back(self) -> None:
        unconfirmed, self.unconfirmed = self.unconfirmed, None
        if unconfirmed is not None:
            self._core.fetcher.put_back(unconfirmed.portions)

    def portions(self, timeout_ms: int | None, records_max: int) -> list[Portion]:
        """What one poll gives; `unconfirmed` until its caller says that it has it."""
        if self._core.subscriptions.kind is Kind.NONE:
            raise IllegalStateException("there is nothing to poll: call subscribe() or assign() first")
        if self._callbacks.is_running:
            raise IllegalStateException("poll within a rebalance callback: it would wait for the callback to end")
        try:
            portions = self._wait_for_records(timeout_ms, records_max)
            self._core.poll_ended(self._clock.steady_ms())
        except BaseException:  # Ctrl-C, in the midst of the line above, too.
            self._core.poll_ended(self._clock.steady_ms())
            raise
        return portions

    def _wait_for_records(self, timeout_ms: int | None, records_max: int) -> list[Portion]:
        """Records, as soon as there are some. Until then callbacks are called: for partitions that come and go, and for commits."""
        started_ms, state = self._clock.steady_ms(), PollState()

        def step() -> PollState | Callback | None:
            if not state.has_started:
                state.has_started = True
                self._core.poll_started(started_ms, self._clock.wall_ms())
            if self._callbacks.has_completed_commits:
                return state
            if self._core.subscriptions.kind is Kind.NONE:  # Since a callback, or a signal handler: nothing would ever come.
                state.is_done = True
                return state
            if (callback := self._core.next_callback(self._clock.steady_ms())) is not None:
                return callback
            self.check_wakeup()
            self._core.raise_error()
            state.portions = self._core.take(records_max)
            if not state.portions:
                return None
            state.is_done, self.unconfirmed = True, state
            return state

        while True:
            remaining_ms = None if timeout_ms is None else max(0, started_ms + timeout_ms - self._clock.steady_ms())
            step_result = self._thread.run_until(step, None if remaining_ms is None else remaining_ms / 1000)
            if isinstance(step_result, Callback):
                self._run_listener(step_result)
            elif step_result is None or state.is_done:
                return state.portions
            if self._callbacks.has_completed_commits:
                self._run_callback(self._callbacks.run_commit_callbacks)

    def _run_listener(self, callback: Callback) -> None:
        error = self._run_callback(lambda: self._callbacks.run_listener(callback))
        self._thread.run(lambda: self._core.callback_done(callback))
        if error is not None:
            raise error

    def _run_callback(self, callback: Callable[[], T]) -> T:
        """Call the caller back. He does not poll meanwhile: where that takes longer than max.poll.interval.ms his place is another's."""
        self._thread.run(lambda: self._core.poll_ended(self._clock.steady_ms()))
        result = callback()
        self._thread.run(lambda: self._core.poll_resumed(self._clock.steady_ms()))
        return result


@dataclass(frozen=True, slots=True)
class IterationBatch:
    """Records of one poll, noted as not given yet. `ends`: of each partition the last of them, and the position behind it."""

    records: list[ConsumerRecord]
    ends: dict[TopicPartition, tuple[int, int]]


def begin_iteration(core: ConsumerCore, records: list[ConsumerRecord]) -> IterationBatch:
    """Note that none of these is given yet."""
    assigned = core.subscriptions.assigned
    ends: dict[TopicPartition, tuple[int, int]] = {}
    for record in reversed(records):
        tp = record.topic_partition
        state = assigned[tp]
        if state.is_recreated:
            continue  # The topic was deleted meanwhile: `iterate_records` gives nothing more of it.
        state.delivered_offset = record.offset
        if tp not in ends and state.position is not None:
            ends[tp] = record.offset, state.position.offset
    return IterationBatch(records, ends)


def iterate_records(core: ConsumerCore, batch: IterationBatch, return_undelivered: Callable[[], object]) -> Iterator[ConsumerRecord]:
    """Give each; `return_undelivered` is called at the end, for those that were not."""
    skipped: set[TopicPartition] = set()
    try:
        for record in batch.records:
            tp = record.topic_partition
            state = core.subscriptions.assigned.get(tp)
            if tp in skipped or state is None or state.is_paused or not 0 <= state.delivered_offset <= record.offset:
                skipped.add(tp)  # For good: what comes behind it in another portion is not next, resumed or not.
                continue
            last, end = batch.ends.get(tp, (-1, -1))
            # After the last one nothing is left to give back, though marks of transactions may lie between it and the position. Nothing
            # is called before it is given: Ctrl-C comes with calls, and a record that is noted as given must be.
            state.delivered_offset = end if record.offset == last else record.offset + 1
            yield record
    finally:
        return_undelivered()
