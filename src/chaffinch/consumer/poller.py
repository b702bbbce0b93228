"""Poller: runs rebalance callbacks and commit callbacks, then returns records as soon as there are some.

KeyboardInterrupt can occur after records were taken and before the caller receives them. `unconfirmed` holds such records; the next call
puts them back, and they are read again.

`for record in consumer` polls a batch of records and yields them one by one; positions follow each record. Records that the loop did not
reach when it ends, or when the caller polls, seeks or pauses, are read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from chaffinch.consumer.callbacks import Callbacks
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.positions import Kind
from chaffinch.consumer.core.rebalance import Callback
from chaffinch.consumer.records import ConsumerRecord
from chaffinch.consumer.runner import Runner
from chaffinch.errors import IllegalStateException, WakeupException
from chaffinch.identifiers import TopicPartition
from chaffinch.runtime.clock import Clock

T = TypeVar("T")


class PollState:
    """Progress and result of one poll."""

    def __init__(self) -> None:
        self.has_started = False
        self.is_done = False
        """There are records to return, or the consumer no longer has partitions to read."""
        self.portions: list[Portion] = []


class Poller:
    """The polls of one consumer, one after the other."""

    def __init__(self, core: ConsumerCore, runner: Runner, callbacks: Callbacks, clock: Clock) -> None:
        self.unconfirmed: PollState | None = None
        """The last poll, until its caller has the records and sets this to None."""
        self.wakeup_requested = False
        """`wakeup` was called, and no call has raised WakeupException for it yet."""
        self._core = core
        self._runner = runner
        self._callbacks = callbacks
        self._clock = clock

    def check_wakeup(self) -> None:
        if self.wakeup_requested:
            self.wakeup_requested = False
            raise WakeupException("the call was ended by wakeup()")

    async def return_unconfirmed(self) -> None:
        """Put back the records of a call that was interrupted or failed before its caller received them."""
        self._callbacks.clear_running()
        # A dead thread cannot read them again, and `close` must not fail here.
        if self.unconfirmed is not None and self._runner.death is None:
            await self._runner.run(self._put_back)

    def _put_back(self) -> None:
        unconfirmed, self.unconfirmed = self.unconfirmed, None
        if unconfirmed is not None:
            self._core.fetcher.put_back(unconfirmed.portions)

    async def portions(self, timeout_ms: int | None, records_max: int) -> list[Portion]:
        """Records of one poll. They stay `unconfirmed` until the caller clears that field."""
        if self._core.subscriptions.kind is Kind.NONE:
            raise IllegalStateException("there is nothing to poll: call subscribe() or assign() first")
        if self._callbacks.is_running:
            raise IllegalStateException("poll within a rebalance callback: it would wait for the callback to end")
        try:
            portions = await self._wait_for_records(timeout_ms, records_max)
            self._core.poll_ended(self._clock.steady_ms())
        except BaseException:  # Also KeyboardInterrupt within the line above.
            self._core.poll_ended(self._clock.steady_ms())
            raise
        return portions

    async def _wait_for_records(self, timeout_ms: int | None, records_max: int) -> list[Portion]:
        """Wait for records. Until then, run the callbacks for rebalances and commits."""
        started_ms, state = self._clock.steady_ms(), PollState()

        def step() -> PollState | Callback | None:
            if not state.has_started:
                state.has_started = True
                self._core.poll_started(started_ms, self._clock.wall_ms())
            if self._callbacks.has_completed_commits:
                return state
            if self._core.subscriptions.kind is Kind.NONE:  # A callback or signal handler unsubscribed: no records will come.
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
            step_result = await self._runner.run_until(step, None if remaining_ms is None else remaining_ms / 1000)
            if isinstance(step_result, Callback):
                await self._run_listener(step_result)
            elif step_result is None or state.is_done:
                return state.portions
            if self._callbacks.has_completed_commits:
                await self._run_callback(self._callbacks.run_commit_callbacks)

    async def _run_listener(self, callback: Callback) -> None:
        error = await self._run_callback(lambda: self._callbacks.run_listener(callback))
        await self._runner.run(lambda: self._core.callback_done(callback))
        if error is not None:
            raise error

    async def _run_callback(self, callback: Callable[[], Awaitable[T]]) -> T:
        """Run a callback. Its time counts towards max.poll.interval.ms; a member that exceeds it is removed from the group."""
        await self._runner.run(lambda: self._core.poll_ended(self._clock.steady_ms()))
        result = await callback()
        await self._runner.run(lambda: self._core.poll_resumed(self._clock.steady_ms()))
        return result


@dataclass(frozen=True, slots=True)
class IterationBatch:
    """Records of one poll that a loop yields. `ends`: for each partition the offset of its last record, and the position after it."""

    records: list[ConsumerRecord[Any, Any]]
    ends: dict[TopicPartition, tuple[int, int]]


def begin_iteration(core: ConsumerCore, records: list[ConsumerRecord[Any, Any]]) -> IterationBatch:
    """Mark all these records as not delivered."""
    assigned = core.subscriptions.assigned
    ends: dict[TopicPartition, tuple[int, int]] = {}
    for record in reversed(records):
        tp = record.topic_partition
        state = assigned[tp]
        if state.is_recreated:
            continue  # The topic was deleted in the meantime: `iterate_records` skips its records.
        state.delivered_offset = record.offset
        if tp not in ends and state.position is not None:
            ends[tp] = record.offset, state.position.offset
    return IterationBatch(records, ends)


def iterate_records(
    core: ConsumerCore, batch: IterationBatch, return_undelivered: Callable[[], object]
) -> Iterator[ConsumerRecord[Any, Any]]:
    """Yield each record; `return_undelivered` is called at the end, for the rest."""
    skipped: set[TopicPartition] = set()
    try:
        for record in batch.records:
            tp = record.topic_partition
            state = core.subscriptions.assigned.get(tp)
            if tp in skipped or state is None or state.is_paused or not 0 <= state.delivered_offset <= record.offset:
                skipped.add(tp)  # For the rest of the batch: after a gap its later records are not the next ones, even after `resume`.
                continue
            last, end = batch.ends.get(tp, (-1, -1))
            # After the last record nothing is left to return, although transaction markers may lie between it and the position. There is no
            # function call between this line and `yield`: a KeyboardInterrupt there would lose a record that counts as delivered.
            state.delivered_offset = end if record.offset == last else record.offset + 1
            yield record
    finally:
        return_undelivered()
