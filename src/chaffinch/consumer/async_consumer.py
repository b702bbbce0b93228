"""KafkaConsumer API for asyncio: `AsyncConsumer`. Its calls and its core are those of `Consumer`; the event loop runs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, TypeVar, Unpack, overload

from chaffinch.consumer import arguments
from chaffinch.consumer.access_guard import TaskGuard
from chaffinch.consumer.callbacks import Callbacks, OnCommit, OnPartitions
from chaffinch.consumer.calls import CLOSE_TIMEOUT_S, ConsumerCalls
from chaffinch.consumer.core.lookups import FoundOffset
from chaffinch.consumer.core.options import EARLIEST, LATEST, parse_options
from chaffinch.consumer.loop_runner import LoopRunner
from chaffinch.consumer.poller import iterate_records
from chaffinch.consumer.records import ConsumerRecord, K, V
from chaffinch.errors import IllegalStateException
from chaffinch.foreign_names import ASYNC_CONSUMER_HINTS, missing_attributes, refuse_arguments
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.public_names import exported_from

if TYPE_CHECKING:
    import re

    import pyarrow as pa

    from chaffinch.consumer.option_types import ConsumerOptions

T = TypeVar("T")


@exported_from("chaffinch")
class AsyncConsumer(Generic[K, V]):
    """Kafka consumer for asyncio: reads records as objects or Arrow tables, as a member of a group or from assigned partitions.

    For example::

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.partition, record.offset, record.key, record.value)

    Options, errors and the types `K` and `V` of keys and values are those of `Consumer`.

    All methods belong to the event loop that `start` or `async with` ran on. No thread is started; the loop's executor looks up host names.
    The event loop sends heartbeats and fetches, also while no call waits. As for `Consumer`, the group removes a member that does not poll
    within `max.poll.interval.ms`. Deserializers run on the loop: they must not block.

    One task at a time may use the methods that wait. Any task may call the others, such as `seek`, `pause` and `assignment`, and any thread
    `wakeup`. Callbacks may be coroutine functions; they run within the call that causes them.

    Cancellation loses nothing: a cancelled `poll` or `async for` returns its records to the next one. A cancelled `commit` may have
    committed. A callback that was cancelled is called again by the next poll. A cancelled `close` ends at once.

    At its end the `async with` statement calls `close`, which commits what was read (if auto-commit is on) and leaves the group. If an
    exception ends the statement, nothing more is committed. As in Kafka, the default of `isolation.level` is `read_uncommitted`.

    Args:
        options: options by dotted name, as Kafka names them.
        **keywords: the same options, with underscores. `bootstrap.servers` is required; `subscribe` and commits need `group.id`.
            All options: docs/reference/consumer.md.

    Raises:
        ConfigException: an option is unknown, has an invalid value, or contradicts another option; the message names it.
    """

    @overload
    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K, V],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[bytes, V],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K, bytes],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[Any, Any],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: str,
        value_deserializer: str | Callable[[bytes], Any] | None = None,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[Any, Any],
        options: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: str,
        **keywords: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(self, options: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self.settings = parse_options(options, **keywords)
        self._shared = ConsumerCalls(self.settings, TaskGuard(), Callbacks(may_await=True))
        self._runner: LoopRunner | None = None

    # Start and close.

    async def start(self) -> Self:
        """Open the consumer on the running event loop; `async with` does it. Brokers are contacted by the first call that needs one.

        Returns:
            The consumer itself.

        Raises:
            IllegalStateException: the consumer was started or closed before.
        """
        calls = self._shared
        if self._runner is not None or calls.guard.is_closed:
            raise IllegalStateException(
                f"start(): the consumer was {'closed' if calls.guard.is_closed else 'started'} before; make a new one"
            )
        self._runner = LoopRunner(calls.core, calls.network_settings, calls.clock)
        calls.attach(self._runner)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._close(round(1000 * CLOSE_TIMEOUT_S), kind)

    def __del__(self) -> None:
        runner = self.__dict__.get("_runner")
        if runner is None or runner.death is not None or self._shared.guard.is_in_other_process:
            return
        runner.call_from_finalizer(runner.stop)
        text = f"{self!r} was not closed: close it, or use it in an async with statement"
        warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncConsumer cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        is_new = self._runner is None and not self._shared.guard.is_closed
        return self._shared.describe("AsyncConsumer", "not started" if is_new else "")

    async def close(self, timeout: float | None = CLOSE_TIMEOUT_S, **foreign: Never) -> None:
        """Commit what was read if auto-commit is on, leave the group (static members stay), and stop.

        Has no effect when repeated or in a forked child.

        Args:
            timeout: limit in seconds for the commit and the response to LeaveGroup; None: no limit.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Raises:
            KafkaException: a callback failed; the consumer is closed all the same.
        """
        refuse_arguments("close", foreign)
        await self._close(arguments.checked_timeout_ms(timeout), None)

    async def _close(self, timeout_ms: int | None, exception_type: type[BaseException] | None) -> None:
        guard = self._shared.guard
        if self._runner is None:
            guard.is_closed = True
        elif not guard.is_closed and not guard.is_in_other_process:
            self._runner.check_loop("close")
            await self._shared.close(timeout_ms, exception_type)

    # Subscription and assignment.

    async def subscribe(
        self,
        topics: Collection[str] | str | re.Pattern[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Subscribe to topics; the group assigns their partitions to its members. Replaces the previous subscription.

        The callbacks run within `poll`, `close` or `unsubscribe`.

        Args:
            topics: names, a single name, or a compiled pattern that must match a whole name. An empty list unsubscribes.
            on_assign: called with the list of partitions that were assigned.
            on_revoke: called with the list of partitions that the member has to give up; it may still commit them.
            on_lost: called with the list of partitions that the group has already taken away; by default `on_revoke`.

        Raises:
            TypeError, ValueError: an argument is invalid.
            InvalidTopicException: brokers do not accept a topic name.
            IllegalStateException: there is no `group.id`, or partitions are assigned with `assign`.
        """
        await self._calls("subscribe").subscribe(topics, on_assign, on_revoke, on_lost)

    async def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions without group management. Replaces the previous assignment; partitions in both keep their positions.

        Args:
            partitions: collection of TopicPartitions. An empty one unsubscribes.

        Raises:
            TypeError: an argument is invalid.
            IllegalStateException: the consumer is subscribed to topics.
        """
        await self._calls("assign").assign(partitions)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group; runs `on_revoke` first.

        Raises:
            KafkaException: the callback failed; its exception is the cause.
        """
        await self._calls("unsubscribe").unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the topics subscribed to; for a pattern, the topics that it matches.

        Returns:
            A set of names; empty without a subscription.
        """
        return self._now("subscription", self._shared.subscription)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now, assigned by the group or with `assign`.

        Returns:
            A set of TopicPartitions.
        """
        return self._now("assignment", self._shared.assignment)

    # Reading.

    if not TYPE_CHECKING:  # Type checkers report missing attributes themselves.
        __getattr__ = missing_attributes(ASYNC_CONSUMER_HINTS)

    def __aiter__(self) -> AsyncRecords[K, V]:
        """Yield records one by one, without end; positions and commits follow each record.

        Records that the loop did not reach when it ends, or when the consumer polls, seeks or pauses, are read again.

        Raises:
            KafkaException: as `poll`.
        """
        return AsyncRecords(self._calls("async for"))

    async def poll(self, timeout: float | None = None, **foreign: Never) -> list[ConsumerRecord[K, V]]:
        """Return records as soon as there are some. Takes part in rebalances, runs callbacks, and makes automatic commits of earlier polls.

        Args:
            timeout: limit in seconds; None: no limit.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Returns:
            At most `max.poll.records` ConsumerRecords, ordered by offset within each partition; an empty list after the timeout.

        Raises:
            IllegalStateException: nothing is subscribed or assigned, or this is a rebalance callback.
            NoOffsetForPartitionException, OffsetOutOfRangeException: a partition has no valid position and `auto.offset.reset` is `none`.
            RecordDeserializationException: a deserializer raised; seek past the record to continue.
            CorruptRecordException: a batch is damaged; the message names the offset to seek to.
            FencedInstanceIdException: another member uses the same `group.instance.id`.
            WakeupException: `wakeup` was called.
            KafkaException: another error that retries cannot solve, such as a missing permission, or an exception of a callback.
        """
        refuse_arguments("poll", foreign)
        return await self._calls("poll").poll(timeout)

    async def poll_table(self, timeout: float | None = None, **foreign: Never) -> pa.Table:
        """Return records as an Arrow table, as soon as there are some; otherwise as `poll`. Needs pyarrow.

        Args:
            timeout: limit in seconds; None: no limit.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Returns:
            A pyarrow.Table with the columns topic, partition, offset, timestamp, timestampType, key, value and headers. Keys and values are
            binary: deserializers are not called. At most 100000 rows, or `max.poll.records` if that option is given; no rows after the
            timeout.

        Raises:
            KafkaException: as `poll`.
        """
        refuse_arguments("poll_table", foreign)
        table: pa.Table = await self._calls("poll_table").poll_table(timeout)
        return table

    # Positions.

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record that `poll` returns from an assigned partition; look it up if it is not known.

        Args:
            partition: an assigned TopicPartition.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            The offset.

        Raises:
            IllegalStateException: the partition is not assigned.
            TimeoutException: the position could not be looked up in time.
            UnknownTopicOrPartitionException: the partition does not exist.
            KafkaException: as `poll`.
        """
        return await self._calls("position").position(partition, timeout)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue reading an assigned partition at this offset.

        Args:
            partition: an assigned TopicPartition.
            offset: int, or OffsetAndMetadata; with its leader epoch the leader first checks that its log still has the offset.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: the partition is not assigned.
        """
        self._now("seek", self._shared.seek(partition, offset))

    def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Continue reading at the first available offset.

        Args:
            partitions: assigned TopicPartitions; None: all that are assigned.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._now("seek_to_beginning", self._shared.seek_to(partitions, EARLIEST))

    def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Continue reading at the end: the high watermark, or with `read_committed` the last stable offset.

        Args:
            partitions: assigned TopicPartitions; None: all that are assigned.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._now("seek_to_end", self._shared.seek_to(partitions, LATEST))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; records already fetched are retained.

        Args:
            partitions: assigned TopicPartitions.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._now("pause", self._shared.set_paused(partitions, is_paused=True))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again, from the position where they were paused.

        Args:
            partitions: assigned TopicPartitions.

        Raises:
            IllegalStateException: a partition is not assigned.
        """
        self._now("resume", self._shared.set_paused(partitions, is_paused=False))

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused.

        Returns:
            A set of TopicPartitions.
        """
        return self._now("paused", self._shared.paused)

    # Committed offsets.

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        asynchronous: bool = False,
        on_commit: OnCommit | None = None,
        timeout: float | None = None,
        **foreign: Never,
    ) -> None:
        """Commit offsets to the group. By default waits for the response, and retries errors that pass.

        Args:
            offsets: mapping of TopicPartition to the offset of the next record to read, an int or OffsetAndMetadata; None: the positions of
                all assigned partitions.
            asynchronous: send the commit once, without a retry, and return immediately.
            on_commit: called with (offsets, error) within this call or a later `poll`, `commit` or `close`; error is None after success.
            timeout: limit in seconds; None: `default.api.timeout.ms`.
            foreign: names of other Kafka clients; they raise TypeError with a hint.

        Raises:
            TypeError, ValueError: an argument is invalid.
            IllegalStateException: there is no `group.id`.
            RebalanceInProgressException: the group rebalances; poll, then commit again.
            CommitFailedException: the member was removed from the group, or is not a member.
            TimeoutException: the coordinator did not respond in time; the offsets may be committed.
            KafkaException: the coordinator rejected the commit.
        """
        refuse_arguments("commit", foreign)
        await self._calls("commit").commit(offsets, on_commit, timeout, asynchronous=asynchronous)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that the group has committed.

        Args:
            partitions: TopicPartitions, assigned or not.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of each TopicPartition to OffsetAndMetadata, or to None if nothing is committed for it.

        Raises:
            IllegalStateException: there is no `group.id`.
            TimeoutException: the coordinator did not respond in time.
            KafkaException: the coordinator rejected the request.
        """
        return await self._calls("committed").committed(partitions, timeout)

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this member, for `AsyncProducer.send_offsets_to_transaction`.

        Returns:
            GroupMetadata with the group id, generation, member id and `group.instance.id`.

        Raises:
            IllegalStateException: there is no `group.id`.
        """
        return self._now("group_metadata", self._shared.group_metadata)

    # Offsets and partitions of the cluster.

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Find the first record of each partition that is not older than a time.

        Args:
            times: mapping of TopicPartition to ms since 1970.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of each TopicPartition to (offset, timestamp_ms, leader_epoch), or to None if no record is recent enough.

        Raises:
            TypeError, ValueError: an argument is invalid.
            TimeoutException: a leader did not respond in time.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return await self._calls("offsets_for_times").offsets_for_times(times, timeout)

    async def beginning_offsets(self, partitions: Collection[TopicPartition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the first available offset of each partition.

        Args:
            partitions: TopicPartitions, assigned or not.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of TopicPartition to offset.

        Raises:
            TimeoutException: a leader did not respond in time.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return await self._calls("beginning_offsets").offsets_at(partitions, OFFSET_EARLIEST, timeout, "beginning_offsets")

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the high watermark, or with `read_committed` the last stable offset.

        Args:
            partitions: TopicPartitions, assigned or not.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A mapping of TopicPartition to the offset of the next record to be written.

        Raises:
            TimeoutException: a leader did not respond in time.
            UnknownTopicOrPartitionException: a partition does not exist.
        """
        return await self._calls("end_offsets").offsets_at(partitions, OFFSET_LATEST, timeout, "end_offsets")

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """Return the partitions of a topic.

        Args:
            topic: its name.
            timeout: limit in seconds; None: `default.api.timeout.ms`.

        Returns:
            A list of TopicPartitions, ordered by number.

        Raises:
            InvalidTopicException: brokers do not accept this name.
            TimeoutException: no metadata arrived in time.
            UnknownTopicOrPartitionException: the topic does not exist.
        """
        return await self._calls("partitions_for").partitions_for(topic, timeout)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this consumer.

        Returns:
            A mapping of names to numbers. Names that end in `total` count since the consumer was created, the others are current values.
            All names: docs/reference/consumer.md.
        """
        return self._now("metrics", self._shared.metrics)

    def wakeup(self) -> None:
        """End a call that waits, or the next call that would wait, with WakeupException. May be called from any thread.

        Raises:
            IllegalStateException: this is a forked child.
        """
        self._calls("wakeup").wakeup()

    def _calls(self, method: str) -> ConsumerCalls:
        """The calls of the started consumer. Raises IllegalStateException if it is not started, or started on another loop."""
        self._shared.guard.check_open(method)
        if self._runner is None:
            raise IllegalStateException(f"{method}(): the consumer is not started: use it in an async with statement, or call start()")
        if method != "wakeup":
            self._runner.check_loop(method)
        return self._shared

    def _now(self, method: str, call: Callable[[], T]) -> T:
        """Make a call that waits for nothing."""
        self._calls(method)
        assert self._runner is not None, "checked above"
        return self._runner.run_now(call)


class AsyncRecords(Generic[K, V]):
    """The records of a consumer, one by one, without end."""

    def __init__(self, calls: ConsumerCalls) -> None:
        self._consumer_calls = calls
        self._records: Iterator[ConsumerRecord[K, V]] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        calls = self._consumer_calls
        while (record := next(self._records, None)) is None:
            if calls.guard.is_closed:  # The body of the loop closed the consumer.
                raise StopAsyncIteration
            batch = await calls.poll_iteration()
            self._records = iterate_records(calls.core, batch, lambda: calls.runner.post(calls.core.return_undelivered))
        return record
