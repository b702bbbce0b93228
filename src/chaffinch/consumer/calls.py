"""Calls of a consumer: the methods of `Consumer` and `AsyncConsumer` as coroutines, on either runner.

KeyboardInterrupt can occur at any point of a thread, and cancellation where a coroutine suspends. Changes of the core are therefore made by
the runner, each in one step.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from chaffinch import plain_text
from chaffinch.client.client_thread import EXIT_WAIT_MS
from chaffinch.client.metrics import read_all
from chaffinch.client.options import ConnectionSettings
from chaffinch.consumer import arguments, closing
from chaffinch.consumer.access_guard import AccessGuard
from chaffinch.consumer.callbacks import Callbacks, OnCommit, OnPartitions
from chaffinch.consumer.core.call_errors import within
from chaffinch.consumer.core.commits import API_TIMEOUT, Commits
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.lookups import FoundOffset, OffsetsCall
from chaffinch.consumer.core.metadata_watch import TopicCall
from chaffinch.consumer.core.options import TABLE_RECORDS
from chaffinch.consumer.core.pending_offsets import Commit
from chaffinch.consumer.core.positions import Position
from chaffinch.consumer.metrics import METRICS
from chaffinch.consumer.poller import IterationBatch, Poller, begin_iteration
from chaffinch.consumer.records import ConsumerRecord, deserializer, records_of_all
from chaffinch.consumer.runner import Pending, Runner, finish
from chaffinch.errors import IllegalStateException, KafkaException, RecordDeserializationException
from chaffinch.identifiers import GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.runtime.clock import SystemClock
from chaffinch.settings import Settings

log = plain_text.logger("chaffinch.consumer")

CLOSE_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


class ConsumerCalls:
    """The calls of one consumer. `attach` them to a runner before the first one."""

    runner: Runner
    poller: Poller

    def __init__(self, settings: Settings, guard: AccessGuard, callbacks: Callbacks) -> None:
        for name in sorted(settings.ignored):
            log.warning("option %s is known to Apache Kafka and without effect here", name)
        self.settings = settings
        self.network_settings = ConnectionSettings.of(settings)
        self._key_deserializer = deserializer(settings, "key.deserializer")
        self._value_deserializer = deserializer(settings, "value.deserializer")
        self.clock = SystemClock()
        self.core = ConsumerCore(settings, random.Random())
        self.core.set_wall_clock(self.clock.steady_ms(), self.clock.wall_ms())  # `position` may be called before the first poll.
        self.guard = guard
        self.callbacks = callbacks
        self._records_max: int = settings["max.poll.records"]
        self._table_records_max = self._records_max if "max.poll.records" in settings.given else TABLE_RECORDS
        self._rejected: dict[TopicPartition, tuple[int, RecordDeserializationException]] = {}
        """Records that a deserializer rejected and that no poll has reported yet."""

    def attach(self, runner: Runner) -> None:
        """Use this runner."""
        self.runner = runner
        self.poller = Poller(self.core, runner, self.callbacks, self.clock)

    def describe(self, kind: str, state: str = "") -> str:
        """The text for `repr`. `state`: instead of what the consumer reads."""
        servers, group_id = self.settings["bootstrap.servers"], self.settings["group.id"]
        group = "" if group_id is None else f", group.id {group_id!r}"
        state = state or ("closed" if self.guard.is_closed else f"reads {self.core.subscriptions.describe()}")
        return f"<{kind} {self.settings['client.id']!r} of {','.join(servers)}{group}, {state}>"

    # Subscription and assignment.

    async def subscribe(
        self, topics: Any, on_assign: OnPartitions | None, on_revoke: OnPartitions | None, on_lost: OnPartitions | None
    ) -> None:
        wanted = arguments.checked_topics(topics)
        listeners = {"assign": on_assign, "revoke": on_revoke, "lost": on_revoke if on_lost is None else on_lost}
        checked = {kind: arguments.checked_callback(callback, f"on_{kind}") for kind, callback in listeners.items()}

        def subscribe() -> None:
            if isinstance(wanted, list):
                self.core.subscribe(wanted)
            else:
                self.core.subscribe_pattern(wanted)
            self.callbacks.listeners = checked

        async def call() -> None:
            self._require_group("subscribe")
            if wanted:
                await self.runner.run(subscribe)
            else:
                await self.unsubscribe()

        await self._enter("subscribe", call)

    async def assign(self, partitions: Collection[TopicPartition]) -> None:
        tps = arguments.checked_partitions(partitions)
        if tps:
            await self.run("assign", lambda: self.core.assign(tps, self.clock.steady_ms()))
        else:
            await self._enter("assign", self.unsubscribe)

    async def unsubscribe(self) -> None:
        def leave() -> None:
            self.core.leave("the consumer unsubscribed from all topics")
            self.callbacks.listeners = {}

        async def call() -> None:
            error = await self.callbacks.run_listener(await self.runner.run(self.core.leave_callback))
            await self.runner.run(leave)
            if error is not None:
                raise error

        await self._enter("unsubscribe", call)

    # Reading.

    async def poll(self, timeout: float | None) -> list[ConsumerRecord[Any, Any]]:
        return await self._poll_records(timeout, self._records_of)

    async def poll_iteration(self) -> IterationBatch:
        """The next records for a loop over single ones."""
        return await self._poll_records(None, lambda portions: begin_iteration(self.core, self._records_of(portions)))

    async def poll_table(self, timeout: float | None) -> Any:
        from chaffinch.consumer.tables import table_of  # pyarrow is imported only for tables.

        return await self._poll("poll_table", timeout, self._table_records_max, table_of)

    async def _poll(self, method: str, timeout: float | None, records_max: int, convert: Callable[[list[Portion]], T]) -> T:
        timeout_ms = arguments.checked_timeout_ms(timeout)

        async def call() -> T:
            return convert(await self.poller.portions(timeout_ms, records_max))

        made = await self._enter(method, call)
        self.poller.unconfirmed = None  # If an exception comes before this, the records are read again: see `Poller.return_unconfirmed`.
        return made

    async def _poll_records(self, timeout: float | None, convert: Callable[[list[Portion]], T]) -> T:
        if self._rejected:
            await self.run("poll", self._raise_rejected)
        return await self._poll("poll", timeout, self._records_max, convert)

    def _raise_rejected(self) -> None:
        """Raise the error of each rejected record once, if the record is the next one in its partition."""
        while self._rejected:
            tp = next(iter(self._rejected))
            offset, error = self._rejected.pop(tp)
            state = self.core.subscriptions.assigned.get(tp)
            if state is None or state.is_paused or state.is_recreated or state.consumed is None:
                continue
            if state.consumed.offset == offset:
                raise error

    def _records_of(self, portions: list[Portion]) -> list[ConsumerRecord[Any, Any]]:
        found = records_of_all(portions, self._key_deserializer, self._value_deserializer, self._reject)
        if self._rejected and not found:
            finish(self.runner.run, self._raise_rejected)
        return found

    def _reject(self, tp: TopicPartition, offset: int, error: RecordDeserializationException) -> None:
        """Move the position back to a record that a deserializer rejected. The next poll raises the error before it returns records."""

        def go_back() -> None:
            if not self.core.subscriptions.of(tp).is_recreated:  # Otherwise the record's topic was deleted in the meantime.
                self.core.seek(tp, Position(offset))
                self._rejected[tp] = offset, error

        finish(self.runner.run, go_back)

    # Changes and queries of the core that wait for nothing. `run` or `AsyncConsumer` runs them.

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> Callable[[], None]:
        tp, found = arguments.checked_topic_partition(partition), arguments.checked_offset(offset)
        return lambda: self.core.seek(tp, Position(found.offset, found.leader_epoch))

    def seek_to(self, partitions: Collection[TopicPartition] | None, strategy: Any) -> Callable[[], None]:
        tps = None if partitions is None else arguments.checked_partitions(partitions)
        return lambda: self.core.seek_to(list(self.core.subscriptions.assigned) if tps is None else tps, strategy)

    def set_paused(self, partitions: Collection[TopicPartition], *, is_paused: bool) -> Callable[[], None]:
        tps = arguments.checked_partitions(partitions)

        def pause() -> None:
            for state in [self.core.subscriptions.of(tp) for tp in tps]:
                state.is_paused = is_paused

        return pause

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(tp for tp, state in self.core.subscriptions.assigned.items() if state.is_paused)

    def subscription(self) -> frozenset[str]:
        return self.core.subscriptions.topics

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.core.subscriptions.assigned)

    def group_metadata(self) -> GroupMetadata:
        self._require_group("group_metadata")
        return self.core.group_metadata()

    def metrics(self) -> dict[str, float]:
        return read_all(METRICS, self.core, self.clock.steady_ms())

    # Positions and committed offsets.

    async def position(self, partition: TopicPartition, timeout: float | None) -> int:
        tp = arguments.checked_topic_partition(partition)
        deadline_ms, limit = self._deadline(timeout)

        def step() -> Position | None:
            position = self.core.subscriptions.of(tp).consumed
            if position is None:
                self.core.raise_if_missing(tp, self.clock.steady_ms())
                self.core.raise_error()
                self.poller.check_wakeup()
            return position

        limit_s = max(0, deadline_ms - self.clock.steady_ms()) / 1000
        found = await self._enter("position", lambda: self.runner.run_until(step, limit_s))
        if found is None:
            text = f"the position of {tp} could not be looked up {limit}"
            raise await self.run("position", lambda: self.core.context.timeout_error(text, tps=[tp]))
        return found.offset

    async def commit(self, offsets: Any, on_commit: OnCommit | None, timeout: float | None, *, asynchronous: bool) -> None:
        checked = None if offsets is None else arguments.checked_offsets(offsets)
        callback = arguments.checked_callback(on_commit, "on_commit")
        deadline_ms, limit = self._deadline(timeout)

        def begin(commits: Commits, pending: Pending) -> None:
            wanted = commits.positions() if checked is None else checked

            def done(error: KafkaException | None) -> None:
                pending.complete(error=error)
                past = set() if commit is None else commit.outdated
                self.callbacks.add_completed_commit(callback, {tp: wanted[tp] for tp in wanted.keys() - past}, error)

            commit: Commit | None = None
            commit = commits.commit(checked, deadline_ms, done, retries=not asynchronous, limit=limit)

        async def call() -> None:
            commits = self._require_group("commit").commits
            await self.callbacks.run_commit_callbacks()
            if asynchronous:
                await self.runner.run(lambda: begin(commits, Pending()))
                return
            try:
                await self._request(lambda pending: begin(commits, pending))
            finally:
                await self.callbacks.run_commit_callbacks()

        await self._enter("commit", call)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        tps = arguments.checked_partitions(partitions)
        deadline_ms, limit = self._deadline(timeout)

        async def call() -> dict[TopicPartition, OffsetAndMetadata | None]:
            lookups = self._require_group("committed").commits.committed
            return await self._request(lambda pending: lookups.look_up(tps, deadline_ms, pending, limit)) if tps else {}

        return await self._enter("committed", call)

    # Offsets and partitions of the cluster.

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, FoundOffset | None]:
        return await self._query_offsets(arguments.checked_times(times), timeout, "offsets_for_times")

    async def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp: int, timeout: float | None, method: str
    ) -> dict[TopicPartition, int]:
        found = await self._query_offsets(dict.fromkeys(arguments.checked_partitions(partitions), timestamp), timeout, method)
        return {tp: offset.offset for tp, offset in found.items() if offset is not None}

    async def _query_offsets(
        self, times: dict[TopicPartition, int], timeout: float | None, method: str
    ) -> dict[TopicPartition, FoundOffset | None]:
        deadline_ms, limit = self._deadline(timeout)
        found: dict[TopicPartition, FoundOffset | None] = await self._enter(
            method, lambda: self._request(lambda pending: self.core.lookups.add(OffsetsCall(pending, times, deadline_ms, limit)))
        )
        return found

    async def partitions_for(self, topic: str, timeout: float | None) -> list[TopicPartition]:
        name = arguments.checked_topic(topic)
        deadline_ms, limit = self._deadline(timeout)
        found: list[TopicPartition] = await self._enter(
            "partitions_for",
            lambda: self._request(lambda pending: self.core.topic_calls.add(TopicCall(pending, name, deadline_ms, limit))),
        )
        return found

    # Wakeup and close.

    def wakeup(self) -> None:
        self.guard.check_process()
        self.poller.wakeup_requested = True
        self.runner.notify()

    async def close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        """`exception_type`: the exception that ends the `with` statement; its records may not have been processed."""
        if not self.guard.is_in_other_process:
            await self._enter("close", lambda: self._close(timeout_ms, exception_type))

    async def _close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        if self.guard.is_closed:
            return
        self.poller.wakeup_requested, error = False, None
        deadline_ms = self.clock.steady_ms() + (2**53 if timeout_ms is None else timeout_ms)
        was_stopping = self.runner.is_stopping
        try:
            if not was_stopping and self.runner.death is None:  # An interrupted `close` may have stopped the runner already.
                await closing.commit_on_close(self.core, self.runner, deadline_ms, exception_type)
                error = await self.callbacks.run_listener(await self.runner.run(self.core.leave_callback))
                await closing.leave(self.core, self.runner, deadline_ms)
        except KafkaException:
            if not self.guard.is_closed:  # Otherwise a signal handler closed it in the meantime.
                raise
        finally:
            # In this order: after an interrupt before `stop`, `close` can be repeated. A signal handler that interrupts the wait in `stop`
            # must not wait for itself.
            self.runner.stop(EXIT_WAIT_MS if was_stopping else None)
            self.guard.is_closed = True
        await self.callbacks.run_commit_callbacks()
        if error is not None:
            raise error

    # Access, waiting and deadlines.

    async def _enter(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, from outside or nested in another call."""
        return await self.guard.enter(method, call, self.poller.return_unconfirmed)

    async def run(self, method: str, call: Callable[[], T]) -> T:
        """Make a call that reads or changes the core without waiting for a response."""
        return await self._enter(method, lambda: self.runner.run(call))

    async def _request(self, start: Callable[[Pending], None]) -> Any:
        """Start a request and wait for its result."""
        pending, to_start = Pending(), [start]

        def step() -> Pending | None:
            if to_start:
                to_start.pop()(pending)
            self.poller.check_wakeup()
            return pending if pending.is_done else None

        await self.runner.run_until(step, None)
        if pending.error is not None:
            raise pending.error
        return pending.result

    def _deadline(self, timeout: float | None) -> tuple[int, str]:
        """The deadline of a call, and its limit as text for errors."""
        timeout_ms, name = arguments.checked_timeout_ms(timeout), "timeout"
        if timeout_ms is None:
            timeout_ms, name = self.settings[API_TIMEOUT], API_TIMEOUT
        return self.clock.steady_ms() + timeout_ms, within(timeout_ms, name)

    def _require_group(self, method: str) -> Group:
        if self.core.group is None:
            raise IllegalStateException(f"{method} needs a group, and this consumer has none: give it the option group.id")
        return self.core.group
